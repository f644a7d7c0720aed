//! All tests of this crate that need no process of their own, as one program: each program is linked anew after a change.

mod golden;
mod properties;
mod selective;
mod spans;
