//! All tests of this crate that need no process of their own, as one program: each program is linked anew after a change.

mod borrowed;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod identity;
mod lent;
mod ports;
mod requests;
mod shares;
mod steps;
mod urma;
mod workers;
