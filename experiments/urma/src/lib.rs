//! The evaluation of the OpenURMA paper, again, with the real protocol code; experiments/urma/run runs it (docs/urma-studies.md).
//!
//! The paper's two-node simulator adds constants. Here hosts run Burst's engine, URMA on the bus and RC for RoCE, in virtual
//! time; only what lies between program, adapter and memory is a model, with the paper's parameters. Each study puts four
//! figures side by side: the paper's, those of the authors' committed files, the closed form behind them, and the simulated
//! one, and says why they differ.
//!
//! | module | what |
//! |---|---|
//! | [`interface`] | the parameters of host interfaces |
//! | [`closed_form`] | the paper's arithmetic |
//! | [`artefact`] | the figures of the paper and of its repository |
//! | [`program`] | which operations programs begin |
//! | [`host`], [`packets`] | a host with its adapter; what packets ask of it |
//! | [`world`], `connect` | hosts and network in one time; queues and work requests |
//! | [`measure`], [`report`] | runs a program; the table of a study |
//! | [`latency`] | studies of two idle hosts |
//! | [`load`], [`order`], [`disorder`] | many operations at a time; order; loss and jitter |
//! | [`pressure`], [`contention`], [`congestion`] | many Jetties and hosts; a lock; a full port |
//! | [`state`], [`absent`] | bytes and setup; what is not measured |
//! | [`registry`] | all studies, by name |
#![forbid(unsafe_code)]

pub mod absent;
pub mod artefact;
pub mod closed_form;
pub mod congestion;
mod connect;
pub mod contention;
pub mod disorder;
pub mod host;
pub mod interface;
pub mod latency;
pub mod load;
pub mod measure;
pub mod order;
pub mod packets;
pub mod pressure;
pub mod program;
pub mod registry;
pub mod report;
pub mod state;
pub mod world;
