//! The objects of one context: protection domains, regions, channels, queues, queue pairs, address handles.
//!
//! A handle is a number of its context alone, and each use looks it up here, so that a program can name only its own objects. An
//! object that others refer to counts them; destroying it then fails with EBUSY, as verbs documents. [`Context::close_some`]
//! releases everything in the right order, whatever state the program died in.
//!
//! | module | contents |
//! |---|---|
//! | `state` | the tables, opening |
//! | `requests` | which function carries out which request |
//! | `domains` | protection domains, completion channels, address handles |
//! | `memory` | memory regions, windows and device memory; the copier for the memory of a GPU |
//! | `queues` | completion queues and shared receive queues |
//! | `queue_pair` | queue pairs |
//! | `urma` | the use of URMA |
//! | `xrc` | XRC domains and target queue pairs |
//! | `close` | the end of a context |
//! | `handles` | tables from handles to objects |
//! | `check` | what must hold between two requests |

pub(crate) mod check;
mod close;
mod domains;
mod handles;
mod memory;
mod queue_pair;
mod queues;
mod requests;
mod state;
mod urma;
mod xrc;

pub use state::Context;
pub(crate) use urma::RING_COST;
