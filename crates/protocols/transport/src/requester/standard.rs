//! The requester of the standard family, which every RoCEv2 peer understands.
//!
//! `acks` takes acknowledgements, responses and time-outs; after a loss it goes back (`go_back_n`). `probes` sends the last
//! packet again when the peer says nothing. `split_writes` makes each packet of a short WRITE a message of its own.

pub(crate) mod acks;
pub(crate) mod go_back_n;
pub(crate) mod probes;
pub(crate) mod split_writes;
