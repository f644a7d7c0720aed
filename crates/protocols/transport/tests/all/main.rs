//! All tests of this crate that need no process of their own, as one program: each program is linked anew after a change.

mod adversarial;
mod attributes;
mod basics;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod early_trains;
mod forged;
mod golden;
mod late_pages;
mod middles;
mod probes;
mod read_acks;
mod read_repair;
mod receipts;
mod remote_trains;
mod requester;
mod responder;
mod selective;
mod selective_hostile;
mod selective_limits;
mod selective_reports;
mod selective_trains;
mod selective_xrc;
mod split_writes;
mod unreliable;
mod windows;
mod xrc;
