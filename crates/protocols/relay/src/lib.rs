//! The stream protocol between two proxies: many TCP streams over one link of messages, without I/O.
//!
//! A *link* joins one worker of each proxy. It carries batches of frames, each with a sequence number
//! ([`LinkOutbox`], [`LinkInbox`]). The transport under a link (a queue pair, or the TLS channel) may break and be
//! replaced: both ends then say how far they have received, and every later batch is sent again, so that each frame
//! takes effect once and in order.
//!
//! A *stream* is one TCP connection ([`Stream`]). Its bytes have offsets from 0 in each direction. A sender places
//! bytes into the receiver's window by RDMA WRITE and announces them by a frame PLACED, or carries a few inside a
//! frame DATA. Bytes stay in the sender's ring until the receiver has delivered them to its own socket and says so by
//! CREDIT, so that a batch can be sent again at any time. GROW names a larger window. FIN carries the final offset. END
//! is the last frame of a stream in each direction: memory of a window is used again only after the peer's END, because
//! earlier frames of one queue pair have then taken effect.
//!
//! What a link carries over a queue pair can be encrypted ([`LinkSealer`], [`LinkOpener`]).
//!
//! Frames from a peer are hostile until checked: each fault is named by [`PeerFault`] and ends the link.
#![forbid(unsafe_code)]

mod batch;
mod frame;
mod seal;
mod stream;

pub use batch::{BATCH_BYTES, BATCHES, Batch, BatchPlace, LinkInbox, LinkOutbox, Novelty, PLACES};
pub use frame::{
    Frame, FrameReader, HEADER_BYTES, Header, LinkHello, MessageKind, Outcome, PeerFault, PeerWindow, SealOffer,
    VERSION, WindowOf,
};
pub use seal::{
    ChannelSecret, EXPORT_BYTES, EXPORT_LABEL, LinkOpener, LinkSealer, MESSAGES_PER_KEY, SEAL_BYTES,
    SEALED_PLACE_BYTES, SealedDirection,
};
pub use stream::{INLINE_BYTES, Stream};
