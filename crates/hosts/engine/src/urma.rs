//! The Unified Bus in a worker: nodes of URMA beside the queue pairs, and the programs that use them.
//!
//! | file | what it holds |
//! |---|---|
//! | `endpoint` | [`UrmaEndpoint`]: a node with its port, as workers run it, and programs alone; what tools see of it |
//! | `channel_paths` | congestion control of channels: the paths of the worker, or of an endpoint alone |
//! | `endpoints`, `endpoint_slot` | the endpoints of a worker: turns, bursts, timers; one endpoint with its programs' queues |
//! | `tenant` | [`UrmaTenant`]: a program in another process: its ring of records, its objects, its calls |
//! | `records` | work requests and completions as records |
//! | `failures` | records of requests of Jetties that failed, for `burst why` |
//! | `orphans` | objects of programs that have ended |
//! | `region_memory` | memory of such programs: the worker's regions |

mod channel_paths;
mod endpoint;
mod endpoint_slot;
mod endpoints;
mod failures;
mod orphans;
pub mod records;
mod region_memory;
mod tenant;

pub use burst_base::gid::{gid_of as eid_of, ip_of as address_of};
pub(crate) use channel_paths::PathTables;
pub use endpoint::{UrmaBurst, UrmaEndpoint, address_at, node_at, window_max};
pub(crate) use endpoint_slot::EndpointSlot;
pub use endpoint_slot::UrmaReports;
pub(crate) use endpoints::{UrmaEndpoints, UrmaShared, UrmaTurn};
pub use tenant::{TenantCall, UrmaTenant};
