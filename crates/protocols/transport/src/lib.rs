//! The RoCEv2 transport: RC, XRC, UC and UD queue pairs as state machines.
//!
//! Calls drive a [`Qp`]: packets ([`Qp::on_packet`], [`Qp::on_middles`]), turns to send ([`Qp::poll_tx`]), doorbells, timers.
//! Each call gets the time, the memory regions and the outgoing batch ([`Env`]). Completions, events and counted reasons leave
//! through [`Effects`]. There is no I/O, clock, thread or global, and no allocation after a queue pair has left RESET.
//!
//! | file | what it holds |
//! |---|---|
//! | `api` | the types of calls between engine and queue pair; limits |
//! | `qp`, `qp_shared` | the queue pair and its public calls; what both halves use |
//! | `requester` | the half that sends requests: work requests, packets, completions, loss recovery |
//! | `responder` | the half that receives requests: checks, execution, receives, answers |
//! | `opcodes`, `middle_packets` | opcodes of both families; the words by which middle packets of a train are known |
//! | `sge_cursor` | positions in scatter/gather lists |
//! | `peer_port` | the UDP source port of the peer's packets |
//! | `rtt`, `ack_report` | round trips and time-outs; what acknowledgements say to congestion control |
//! | `records`, `peer_shares`, `psn_bits` | the pool of records of loss recovery; each peer's share; sets of PSNs |
//! | `failure` | what a queue pair says of its end in error, and of itself |
//! | `copies`, `trail` | who places received bytes, and stages those to be sent, and when; what waits until they are there |
//! | `check` | what must hold between two calls, for simulators and tests |
//!
//! The rules are those of the InfiniBand Architecture Specification, volume 1, chapter 9, annex A14 (XRC) and annex A17 (RoCEv2).
//! Memory windows are bound and invalidated here, and `mem` checks them. Not here: RD, atomics other than 8 bytes, automatic
//! path migration. Multicast groups are the engine's: a datagram to a group arrives as any other.
#![forbid(unsafe_code)]

const _: () = assert!(burst_wire::HEAD_MAX <= burst_frame::HEAD_MAX);
const _: () = assert!(burst_wire::ICRC_LEN == burst_frame::TRAILER_LEN);

mod ack_report;
mod api;
mod check;
mod copies;
mod failure;
mod middle_packets;
mod opcodes;
mod peer_port;
mod peer_shares;
mod psn_bits;
mod qp;
mod qp_shared;
mod records;
mod requester;
mod responder;
mod rtt;
mod sge_cursor;
mod trail;

pub use ack_report::AckReport;
pub use api::{
    ACK_BACKOFF_MAX, ACK_REQUEST_BYTES, ACK_TIMEOUT_MIN, Effects, Env, HostPressure, INFLIGHT_SGES_MAX,
    INFLIGHT_WQES_MAX, MESSAGE_BYTES_MAX, ModifyError, PKEY_DEFAULT, QpConfig, RD_ATOMIC_MAX, READ_CHUNK_BYTES,
    RecvQueue, Signal, TxBudget, TxState, XrcSrq,
};
pub use burst_frame::MiddleRun;
pub use check::QpPositions;
pub use copies::{
    COPIES_PER_CALL, CopyExecutor, CopyProgress, PacketCuts, PlacedBytes, STAGED_BYTES_MAX, STAGED_FOR, StagedFor,
    Ticket, TicketLine,
};
pub use failure::{FailedPart, NamedMemory, QpFacts, QpFailure};
pub use psn_bits::WINDOW_PSNS;
pub use qp::Qp;
pub use records::{RECORDS_MAX, RecordPool};
pub use responder::datagrams::GRH_BYTES;
pub use responder::selective::arrivals::TAIL_BYTES;
pub use trail::{TRAIL_BYTES, TRAIL_BYTES_MAX};
