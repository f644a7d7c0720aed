//! The RoCEv2 transport (storey 2): RC, UC and UD queue pairs as state machines without a world.
//!
//! A [`Qp`] is driven by calls: packets ([`Qp::on_packet`]), turns to send ([`Qp::poll_tx`]), doorbells, timers. Time,
//! memory regions and the outgoing batch come in with each call ([`Env`]); completions, events and counted reasons go out
//! through [`Effects`]. No I/O, clock, thread, global; no allocation after a queue pair has left RESET.
//!
//! | file | job |
//! |---|---|
//! | `api` | what engine and queue pair say to each other; limits |
//! | `qp` | the queue pair and its doors |
//! | `state` | the table of `modify_qp` |
//! | `requester` | work requests to packets |
//! | `completer` | answers and time-outs to progress |
//! | `finish` | completions, errors, flushing, draining |
//! | `responder` | request packets to memory and receives |
//! | `respond` | acknowledgements, NAKs, READ and ATOMIC responses |
//! | `receive` | the receive queue |
//! | `uc`, `ud` | the unreliable services |
//! | `gather`, `ring`, `head` | scatter/gather walks, rings, opcodes |
//!
//! The rules are those of the InfiniBand Architecture Specification, volume 1, chapter 9, and annex A17 (RoCEv2); not here:
//! RD, XRC, memory windows, multicast, atomics other than 8 bytes, selective repeat.
#![forbid(unsafe_code)]

mod api;
mod completer;
mod finish;
mod gather;
mod head;
mod middles;
mod qp;
mod receive;
mod requester;
mod respond;
mod responder;
mod ring;
mod state;
mod uc;
mod ud;
mod xrc;

pub use api::{
    ACK_BACKOFF_MAX, ACK_REQUEST_BYTES, ACK_TIMEOUT_MIN, Effects, Env, INFLIGHT_SGES_MAX, INFLIGHT_WQES_MAX,
    MESSAGE_BYTES_MAX, ModifyError, PKEY_DEFAULT, QpConfig, RD_ATOMIC_MAX, READ_CHUNK_BYTES, RecvQueue, Signal,
    TxBudget, TxState, XrcSrq,
};
pub use middles::Train;
pub use qp::Qp;
pub use ud::GRH_BYTES;
