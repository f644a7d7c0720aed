//! The simulator of `burst sim`: hosts that run the real engine in virtual time, on a modelled network.
//!
//! A simulated host is a whole worker ([`burst_engine::Worker`]) with its queue pairs, congestion control and loss recovery, the
//! same code that a daemon runs. Modelled are the network ([`burst_fabric`]) and what a host's processor costs. Time is an
//! argument everywhere, and everything random comes from one seed, so that a scenario gives the same results each time.
//!
//! | module | what |
//! |---|---|
//! | [`scenario`] | the file that says what is simulated, and its errors |
//! | [`world`] | the simulation: hosts, network and traffic in one time |
//! | [`node`] | a host: worker, queues, memory |
//! | [`port`], [`run`] | the port of a host; packets of one flow on their way |
//! | [`flows`], [`connections`], `memory` | messages, the connections they take, the memory they use |
//! | [`capture`] | the packets of one host as a capture file |
//! | [`cpu`], [`clock`] | what a host's processor costs; what it takes for the time |
//! | [`topology`], [`estimate`] | the network of a scenario; what a simulation will need |
//! | [`results`] | what was measured |
//! | [`sweep`] | a grid of scenarios |
//! | [`oracle`] | what must hold inside the engines |
//! | [`hunt`] | random scenarios under the oracle |
//! | [`liveness`] | the hunt's scenarios of goodput after a loss, and of drops at a bottleneck |
#![forbid(unsafe_code)]

pub mod capture;
pub mod clock;
pub mod connections;
pub mod cpu;
pub mod estimate;
pub mod flows;
pub mod hunt;
pub mod liveness;
mod memory;
pub mod node;
pub mod oracle;
pub mod port;
pub mod results;
pub mod run;
pub mod scenario;
pub mod sweep;
pub mod topology;
pub mod world;
