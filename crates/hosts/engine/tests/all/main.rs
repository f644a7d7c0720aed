//! All tests of this crate that need no process of their own, as one program: each program is linked anew after a change.

mod accounts;
mod activity;
mod agreement;
mod automatic;
mod congestion;
mod copiers;
mod events;
mod failures;
mod fall;
#[path = "../harness/mod.rs"]
mod harness;
mod hello_storm;
mod many;
mod multicast;
mod order;
mod pair;
mod read_acks;
mod receipts;
mod repetition;
mod reports;
mod runner;
mod selective;
mod urma;
mod urma_ends;
mod urma_tenants;
mod xrc_holders;
