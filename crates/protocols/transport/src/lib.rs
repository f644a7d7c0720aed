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
//! | `hot` | the lines that most turns and packets use, asked for ahead |
//! | `state` | the table of `modify_qp` |
//! | `requester` | work requests, and the limits on sending |
//! | `send` | packets of work requests |
//! | `split_writes` | short WRITEs whose packets are messages of their own |
//! | `recovery` | the requests in flight, and repetition after a loss |
//! | `ahead`, `early_responses` | READ responses that arrived behind a gap |
//! | `completer` | acknowledgements, responses, NAKs, time-outs |
//! | `going_back` | how much is sent after a sequence NAK, and when it counts as lost again |
//! | `probes`, `watch` | the last packet is sent again when nothing comes; the wait for progress |
//! | `finish` | completions, errors, flushing, draining |
//! | `responder`, `responder_resource` | request packets: checks and execution; READs and ATOMICs that were accepted |
//! | `respond` | acknowledgements, NAKs, READ and ATOMIC responses |
//! | `receive`, `message` | the receive queue; what a completion tells |
//! | `middles`, `selective_middles`, `early_middles` | middle packets of a train, executed together; those behind a gap |
//! | `peer_port` | the UDP source port of the peer's packets |
//! | `uc`, `ud`, `xrc` | unreliable connections, datagrams, XRC targets |
//! | `selective`, `family` | the selective repeat family: what each queue pair keeps; when it is used |
//! | `selective_requests`, `selective_answers` | its responder, and the acknowledgements |
//! | `selective_sends`, `selective_acks` | its requester |
//! | `read_acks`, `response_window` | acknowledgements of READ responses, and the responses in flight |
//! | `repair_queue`, `response_repairs` | lost parts of READ responses that the peer asks for again |
//! | `arrivals`, `early_receives`, `losses`, `psn_bits` | records of packets that arrived early, of receives, of lost packets |
//! | `records`, `peer_shares`, `packet_store` | their pool; each peer's share; whole early packets, with strict placement |
//! | `strict` | strict placement |
//! | `rtt`, `ack_report` | round trips and time-outs; what acknowledgements say to congestion control |
//! | `check` | what must hold between two calls, for simulators and tests |
//! | `gather`, `ring`, `head` | scatter/gather lists, rings of requests in flight, opcodes and headers |
//!
//! The rules are those of the InfiniBand Architecture Specification, volume 1, chapter 9, annex A14 (XRC) and annex A17 (RoCEv2).
//! Memory windows are bound and invalidated here, and `mem` checks them. Not here: RD, atomics other than 8 bytes, automatic
//! path migration. Multicast groups are the engine's: a datagram to a group arrives as any other.
#![forbid(unsafe_code)]

const _: () = assert!(burst_wire::HEAD_MAX <= burst_frame::HEAD_MAX);
const _: () = assert!(burst_wire::ICRC_LEN == burst_frame::TRAILER_LEN);

mod ack_report;
mod ahead;
mod api;
mod arrivals;
mod check;
mod completer;
mod early_middles;
mod early_receives;
mod early_responses;
mod family;
mod finish;
mod gather;
mod going_back;
mod head;
mod hot;
mod losses;
mod message;
mod middles;
mod packet_store;
mod peer_port;
mod peer_shares;
mod probes;
mod psn_bits;
mod qp;
mod qp_shared;
mod read_acks;
mod receive;
mod records;
mod recovery;
mod repair_queue;
mod requester;
mod respond;
mod responder;
mod responder_resource;
mod response_repairs;
mod response_window;
mod ring;
mod rtt;
mod selective;
mod selective_acks;
mod selective_answers;
mod selective_middles;
mod selective_requests;
mod selective_sends;
mod send;
mod split_writes;
mod state;
mod strict;
mod uc;
mod ud;
mod watch;
mod xrc;

pub use ack_report::AckReport;
pub use api::{
    ACK_BACKOFF_MAX, ACK_REQUEST_BYTES, ACK_TIMEOUT_MIN, Effects, Env, HostPressure, INFLIGHT_SGES_MAX,
    INFLIGHT_WQES_MAX, MESSAGE_BYTES_MAX, ModifyError, PKEY_DEFAULT, QpConfig, RD_ATOMIC_MAX, READ_CHUNK_BYTES,
    RecvQueue, Signal, TxBudget, TxState, XrcSrq,
};
pub use arrivals::TAIL_BYTES;
pub use burst_frame::MiddleRun;
pub use check::QpPositions;
pub use psn_bits::WINDOW_PSNS;
pub use qp::Qp;
pub use records::{PACKETS_MAX, RECORDS_MAX, RecordPool};
pub use ud::GRH_BYTES;
