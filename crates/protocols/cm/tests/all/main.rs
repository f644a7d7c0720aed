//! All tests of this crate that need no process of their own, as one program: each program is linked anew after a change.

mod golden;
#[path = "../harness/mod.rs"]
mod harness;
mod ids;
mod limits;
mod machine;
mod protocol;
mod sources;
mod storm;
