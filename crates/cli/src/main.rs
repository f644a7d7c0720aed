//! `burst`: the command line.

fn main() {}
