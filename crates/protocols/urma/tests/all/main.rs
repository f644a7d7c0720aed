//! All tests of this crate that need no process of their own, as one program: each program is linked anew after a change.

mod basics;
mod bypass;
mod carried;
mod channels;
#[path = "../common/mod.rs"]
mod common;
mod congestion;
mod echo;
mod figures;
mod following;
mod forged;
mod group;
mod hostile;
mod lanes;
mod ordering;
mod restarts;
mod room;
mod same_cna;
mod timer_steps;
mod tokens;
mod waiting;
