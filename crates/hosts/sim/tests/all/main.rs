//! All tests of this crate that need no process of their own, as one program: each program is linked anew after a change.

mod adapters;
mod adversarial;
mod bottleneck;
mod classes;
mod faults;
mod recovery;
mod shared_path;
mod traffic;
mod urma_bottleneck;
mod urma_network;
