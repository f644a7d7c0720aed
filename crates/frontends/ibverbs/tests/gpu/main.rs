//! Memory of a GPU, behind a fake CUDA driver library: the library against a real daemon, both ends in this process.

mod closing;
#[path = "../../../../hosts/client/tests/live/daemon.rs"]
mod daemon;
mod fake;
mod killing;
#[path = "../live/pair.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod pair;
mod receiving;
mod refused;
mod sending;
