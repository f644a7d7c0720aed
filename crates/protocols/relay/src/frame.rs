//! The bytes of messages and frames.
//!
//! A message is a header of 24 bytes and frames (kind batch) or a hello (kind hello). Integers are little-endian.
//! Addresses are IPv6; an IPv4 address is written v4-mapped. Each frame begins with its tag and the stream's id, and
//! has the length that its tag says; only DATA carries a length of its own. Reading checks every length and rejects
//! unknown tags: a newer peer agrees on a version first.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use thiserror::Error;

/// Version of the protocol: the first byte of each message.
pub const VERSION: u8 = 1;
/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 24;
/// Most windows that one hello names.
const WINDOWS_MAX: usize = 1 << 20;

/// What is wrong with what a peer sent. The link is closed with this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeerFault {
    /// A message or frame ends before its fields do.
    #[error("a frame is cut short")]
    Short,
    /// The message is of another version.
    #[error("version {0} of the stream protocol, not 1")]
    Version(u8),
    /// No message has this kind.
    #[error("unknown kind of message {0}")]
    Kind(u8),
    /// No frame has this tag.
    #[error("unknown frame {0}")]
    Tag(u8),
    /// A field has a value that it cannot have.
    #[error("a field of a frame has an impossible value")]
    Field,
    /// A batch follows one that never came.
    #[error("batch {got} after batch {had}")]
    Gap {
        /// Last one received.
        had: u64,
        /// This one.
        got: u64,
    },
    /// More is acknowledged than was sent.
    #[error("acknowledges what was not sent")]
    Ack,
    /// A stream is opened twice, or with an id of the other side.
    #[error("stream {0} is opened with an id that is in use")]
    InUse(u32),
    /// A frame names a stream that does not exist.
    #[error("no stream {0}")]
    Unknown(u32),
    /// Data does not begin where the last ended.
    #[error("stream {0}: data at a wrong offset")]
    Offset(u32),
    /// More data than the window holds.
    #[error("stream {0}: more data than its window holds")]
    Overrun(u32),
    /// The frame cannot come in the stream's present state.
    #[error("stream {0}: a frame out of turn")]
    Turn(u32),
    /// The peer has more streams open, or leaves more frames unacknowledged, than an end keeps for it.
    #[error("more streams or unacknowledged frames than an end keeps")]
    TooMuch,
    /// What has come over a queue pair of an encrypted link does not open.
    #[error("an encrypted link brought bytes that are altered, repeated, missing, out of order or cut")]
    Unauthentic,
    /// The hello of a queue pair of an encrypted link names no key, or one for a link that is not encrypted.
    #[error("the hello of a queue pair does not agree with whether the link is encrypted")]
    Offer,
}

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Frames with a sequence number.
    Batch,
    /// The first message on each new transport of a link.
    LinkHello,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: MessageKind,
    /// Batch: its number, from 1. LinkHello: the attempt that the dialing side counts.
    pub seq: u64,
    /// Number of the last batch that the sender has received.
    pub ack: u64,
}

impl Header {
    /// Writes the header over the first bytes of `to`, which has at least [`HEADER_BYTES`].
    pub fn write(&self, to: &mut [u8]) {
        assert!(
            to.len() >= HEADER_BYTES && self.seq > 0,
            "a message has room for its header, and numbers begin with 1"
        );
        to[..HEADER_BYTES].fill(0);
        to[0] = VERSION;
        to[1] = match self.kind {
            MessageKind::Batch => 1,
            MessageKind::LinkHello => 2,
        };
        to[8..16].copy_from_slice(&self.seq.to_le_bytes());
        to[16..24].copy_from_slice(&self.ack.to_le_bytes());
    }

    /// Reads a header; returns it and what follows.
    ///
    /// # Errors
    /// A [`PeerFault`] of its fields.
    pub fn read(from: &[u8]) -> Result<(Self, &[u8]), PeerFault> {
        let mut bytes = FrameBytes(from);
        match u8::read(&mut bytes)? {
            VERSION => {}
            other => return Err(PeerFault::Version(other)),
        }
        let kind = match u8::read(&mut bytes)? {
            1 => MessageKind::Batch,
            2 => MessageKind::LinkHello,
            other => return Err(PeerFault::Kind(other)),
        };
        if bytes.take(6)? != [0; 6] {
            return Err(PeerFault::Field);
        }
        let header = Self { kind, seq: u64::read(&mut bytes)?, ack: u64::read(&mut bytes)? };
        if header.seq == 0 {
            return Err(PeerFault::Field);
        }
        Ok((header, bytes.0))
    }
}

/// Memory of the sender of this frame into which its peer may write a stream's bytes: byte `n` of the stream at
/// `address + n % len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWindow {
    /// Virtual address as the key knows it; 0: no memory is registered, data comes inside frames.
    pub address: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
}

/// How a stream ends: the code of its last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Both directions ended by FIN and were delivered.
    Clean = 0,
    /// A socket was reset, or failed.
    Reset = 1,
    /// The server refused the connection.
    Refused = 2,
    /// The server cannot be reached.
    Unreachable = 3,
    /// The peer does not serve this address.
    NotServed = 4,
    /// The peer has no memory for another stream.
    NoMemory = 5,
    /// The opener gave up waiting.
    Cancelled = 6,
    /// The peer takes no new streams.
    Draining = 7,
}

impl Outcome {
    /// All outcomes, by code.
    pub const ALL: [Self; 8] = [
        Self::Clean,
        Self::Reset,
        Self::Refused,
        Self::Unreachable,
        Self::NotServed,
        Self::NoMemory,
        Self::Cancelled,
        Self::Draining,
    ];

    /// Whether the opener may still reach the server by TCP: the peer has sent it nothing.
    pub fn leaves_tcp(self) -> bool {
        matches!(self, Self::NotServed | Self::NoMemory | Self::Draining)
    }
}

/// A value in a frame or hello.
trait FrameField<'a>: Sized {
    /// Bytes of the value, or of what precedes it.
    const BYTES: usize;
    fn len(&self) -> usize {
        Self::BYTES
    }
    fn write(&self, to: &mut Vec<u8>);
    fn read(from: &mut FrameBytes<'a>) -> Result<Self, PeerFault>;
}

macro_rules! integers {
    ($($integer:ty),+) => { $(impl FrameField<'_> for $integer {
        const BYTES: usize = size_of::<Self>();
        fn write(&self, to: &mut Vec<u8>) {
            to.extend(self.to_le_bytes());
        }
        fn read(from: &mut FrameBytes<'_>) -> Result<Self, PeerFault> {
            from.take(size_of::<Self>()).map(|bytes| Self::from_le_bytes(bytes.try_into().expect("so many were taken")))
        }
    })+ };
}

integers!(u8, u16, u32, u64);

impl FrameField<'_> for bool {
    const BYTES: usize = 1;
    fn write(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }
    fn read(from: &mut FrameBytes<'_>) -> Result<Self, PeerFault> {
        let byte = u8::read(from)?;
        if byte > 1 { Err(PeerFault::Field) } else { Ok(byte == 1) }
    }
}

impl FrameField<'_> for Outcome {
    const BYTES: usize = 1;
    fn write(&self, to: &mut Vec<u8>) {
        to.push(*self as u8);
    }
    fn read(from: &mut FrameBytes<'_>) -> Result<Self, PeerFault> {
        Self::ALL.get(usize::from(u8::read(from)?)).copied().ok_or(PeerFault::Field)
    }
}

impl<'a> FrameField<'a> for &'a [u8] {
    const BYTES: usize = 4;
    fn len(&self) -> usize {
        Self::BYTES + <[u8]>::len(self)
    }
    fn write(&self, to: &mut Vec<u8>) {
        u32::try_from(<[u8]>::len(self)).expect("a batch is smaller than 4 GiB").write(to);
        to.extend(*self);
    }
    fn read(from: &mut FrameBytes<'a>) -> Result<Self, PeerFault> {
        let len = u32::read(from)?;
        from.take(len as usize)
    }
}

impl FrameField<'_> for SocketAddr {
    const BYTES: usize = 18;
    fn write(&self, to: &mut Vec<u8>) {
        let ip = match self.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        to.extend(ip.octets());
        self.port().write(to);
    }
    fn read(from: &mut FrameBytes<'_>) -> Result<Self, PeerFault> {
        let octets: [u8; 16] = from.take(16)?.try_into().expect("so many were taken");
        Ok(Self::new(Ipv6Addr::from(octets).to_canonical(), u16::read(from)?))
    }
}

impl FrameField<'_> for PeerWindow {
    const BYTES: usize = 16;
    fn write(&self, to: &mut Vec<u8>) {
        self.address.write(to);
        self.rkey.write(to);
        self.len.write(to);
    }
    fn read(from: &mut FrameBytes<'_>) -> Result<Self, PeerFault> {
        let window = Self { address: u64::read(from)?, rkey: u32::read(from)?, len: u32::read(from)? };
        if window.len == 0 || window.address.checked_add(window.len.into()).is_none() {
            return Err(PeerFault::Field);
        }
        Ok(window)
    }
}

/// Frames by tag, each with its fields in the order of its bytes.
macro_rules! frames {
    ($($(#[$doc:meta])+ $tag:literal, $name:ident { $($(#[$field_doc:meta])+ $field:ident: $type:ty,)+ })+) => {
        /// One frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Frame<'a> { $($(#[$doc])+ $name { $($(#[$field_doc])+ $field: $type),+ }),+ }

        impl<'a> Frame<'a> {
            /// Bytes that the frame takes.
            #[allow(clippy::len_without_is_empty, reason = "each frame has a tag")]
            pub fn len(&self) -> usize {
                5 + match self { $(Self::$name { $($field),+ } => 0 $(+ FrameField::len($field))+),+ }
            }

            /// Appends the frame of a stream.
            pub fn write(&self, stream: u32, to: &mut Vec<u8>) {
                match self { $(Self::$name { $($field),+ } => {
                    to.push($tag);
                    stream.write(to);
                    $(FrameField::write($field, to);)+
                }),+ }
            }

            /// Reads the fields of the frame with a tag.
            fn read(tag: u8, from: &mut FrameBytes<'a>) -> Result<Self, PeerFault> {
                match tag {
                    $($tag => Ok(Self::$name { $($field: FrameField::read(from)?),+ }),)+
                    other => Err(PeerFault::Tag(other)),
                }
            }
        }
    };
}

frames! {
    /// Asks the peer to connect to `server` from `client`.
    1, Open {
        /// The program's address, seen by the server.
        client: SocketAddr,
        /// Where the program connects to.
        server: SocketAddr,
        /// For the peer's bytes.
        window: PeerWindow,
    }
    /// The server has accepted.
    2, Accept {
        /// For the peer's bytes.
        window: PeerWindow,
    }
    /// Bytes of the stream.
    3, Data {
        /// Offset of the first.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    }
    /// Bytes of the stream were written into the window.
    4, Placed {
        /// Offset of the first.
        offset: u64,
        /// How many.
        len: u32,
    }
    /// So many bytes were delivered to the receiver's socket; one more once the FIN was.
    5, Credit {
        /// Count since the stream's begin.
        delivered: u64,
    }
    /// No bytes come after this offset.
    6, Fin {
        /// Count of all bytes.
        end: u64,
    }
    /// The byte that follows `offset` bytes is urgent (RFC 9293, 3.8.5) and part of no DATA.
    8, Urgent {
        /// Offset at which it stands.
        offset: u64,
        /// The byte.
        byte: u8,
    }
    /// The last frame of the stream in this direction.
    7, End {
        /// Why.
        outcome: Outcome,
    }
    /// The sender of this frame has waited for credit though the path was idle, and could use a window of so many bytes.
    /// There is no answer but [`Frame::Grow`].
    9, Want {
        /// Bytes.
        len: u32,
    }
    /// A larger window for the peer's bytes from an offset on. Earlier ones still belong into the window before.
    10, Grow {
        /// The window.
        window: PeerWindow,
        /// Offset of the first byte that belongs there.
        from: u64,
    }
    /// Asks for an answer at once, to learn the round trip; of no stream (id 0).
    11, Probe {
        /// This is the answer.
        is_answer: bool,
    }
}

/// Reads the frames of a batch one after the other.
#[derive(Debug)]
pub struct FrameReader<'a>(FrameBytes<'a>);

impl<'a> FrameReader<'a> {
    /// Of the bytes after a batch's header.
    pub fn new(frames: &'a [u8]) -> Self {
        Self(FrameBytes(frames))
    }

    /// The next frame and its stream's id; `None` at the end.
    ///
    /// # Errors
    /// A [`PeerFault`]; what follows cannot be read.
    pub fn next_frame(&mut self) -> Result<Option<(u32, Frame<'a>)>, PeerFault> {
        if self.0.0.is_empty() {
            return Ok(None);
        }
        let (tag, stream) = (u8::read(&mut self.0)?, u32::read(&mut self.0)?);
        Ok(Some((stream, Frame::read(tag, &mut self.0)?)))
    }
}

/// A stream's window, as a hello names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOf {
    /// The stream's id.
    pub stream: u32,
    /// Its window, perhaps in newly registered memory.
    pub window: PeerWindow,
}

/// What the receiver of a direction says in its hello: how the key is made by which the peer encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealOffer {
    /// Name of the channel's secret.
    pub secret: [u8; 8],
    /// Random, new for each hello.
    pub random: [u8; 32],
}

/// The first message on each new transport: how far its sender has received, and where its windows are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkHello {
    /// Number of the link between the two proxies.
    pub link: u32,
    /// The attempt: counted by the side that dials, repeated by the other.
    pub attempt: u64,
    /// Last batch received.
    pub received: u64,
    /// Windows of all open streams; two of one that grows, as long as bytes may be missing in the smaller one.
    pub windows: Vec<WindowOf>,
    /// How the peer is to encrypt what it sends by the queue pair; `None`: not at all.
    pub seal: Option<SealOffer>,
}

/// Bytes of a [`SealOffer`].
const OFFER_BYTES: usize = 40;

impl LinkHello {
    /// The whole message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = vec![0; HEADER_BYTES];
        Header { kind: MessageKind::LinkHello, seq: self.attempt, ack: self.received }.write(&mut to);
        self.link.write(&mut to);
        u32::try_from(self.windows.len()).expect("streams have 32-bit ids").write(&mut to);
        for window in &self.windows {
            window.stream.write(&mut to);
            window.window.write(&mut to);
        }
        if let Some(SealOffer { secret, random }) = &self.seal {
            to.extend(secret);
            to.extend(random);
        }
        to
    }

    /// Of the bytes after its header.
    ///
    /// # Errors
    /// A [`PeerFault`] of its fields.
    pub fn read(header: Header, body: &[u8]) -> Result<Self, PeerFault> {
        let mut bytes = FrameBytes(body);
        let (link, count) = (u32::read(&mut bytes)?, u32::read(&mut bytes)? as usize);
        let has_offer = bytes.0.len() == count * 20 + OFFER_BYTES;
        if count > WINDOWS_MAX || !(has_offer || bytes.0.len() == count * 20) {
            return Err(PeerFault::Short);
        }
        let windows = (0..count)
            .map(|_| Ok(WindowOf { stream: u32::read(&mut bytes)?, window: PeerWindow::read(&mut bytes)? }))
            .collect::<Result<_, PeerFault>>()?;
        let seal = has_offer.then(|| SealOffer::read(&mut bytes)).transpose()?;
        Ok(Self { link, attempt: header.seq, received: header.ack, windows, seal })
    }
}

impl SealOffer {
    fn read(from: &mut FrameBytes<'_>) -> Result<Self, PeerFault> {
        let mut offer = Self { secret: [0; 8], random: [0; 32] };
        offer.secret.copy_from_slice(from.take(8)?);
        offer.random.copy_from_slice(from.take(32)?);
        Ok(offer)
    }
}

/// What is left to read.
#[derive(Debug)]
struct FrameBytes<'a>(&'a [u8]);

impl<'a> FrameBytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], PeerFault> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(PeerFault::Short)?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: PeerWindow = PeerWindow { address: 0x1000, rkey: 7, len: 4096 };

    fn frames() -> Vec<Frame<'static>> {
        let (client, server) = ("10.0.0.1:1".parse().unwrap(), "[fd00::2]:65535".parse().unwrap());
        let mut frames = vec![
            Frame::Open { client, server, window: WINDOW },
            Frame::Accept { window: WINDOW },
            Frame::Data { offset: 5, bytes: b"hello" },
            Frame::Data { offset: 10, bytes: b"" },
            Frame::Placed { offset: u64::MAX, len: u32::MAX },
            Frame::Credit { delivered: 9 },
            Frame::Fin { end: 10 },
            Frame::Urgent { offset: 3, byte: 33 },
            Frame::Want { len: 8192 },
            Frame::Grow { window: WINDOW, from: 77 },
            Frame::Probe { is_answer: false },
            Frame::Probe { is_answer: true },
        ];
        frames.extend(Outcome::ALL.map(|outcome| Frame::End { outcome }));
        frames
    }

    #[test]
    fn every_frame_reads_as_it_was_written() {
        let mut bytes = Vec::new();
        for (id, frame) in frames().iter().enumerate() {
            let before = bytes.len();
            frame.write(id as u32, &mut bytes);
            assert_eq!(bytes.len() - before, frame.len());
        }
        let mut reader = FrameReader::new(&bytes);
        for (id, frame) in frames().into_iter().enumerate() {
            assert_eq!(reader.next_frame(), Ok(Some((id as u32, frame))));
        }
        assert_eq!(reader.next_frame(), Ok(None));
    }

    #[test]
    fn every_shorter_frame_is_refused() {
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.write(1, &mut bytes);
            for len in 1..bytes.len() {
                assert_eq!(
                    FrameReader::new(&bytes[..len]).next_frame(),
                    Err(PeerFault::Short),
                    "{frame:?} cut at {len}"
                );
            }
        }
    }

    #[test]
    fn impossible_fields_are_refused() {
        let read = |bytes: &[u8]| FrameReader::new(bytes).next_frame().unwrap_err();
        assert_eq!(read(&[12, 0, 0, 0, 0]), PeerFault::Tag(12));
        assert_eq!(read(&[7, 0, 0, 0, 0, 8]), PeerFault::Field);
        assert_eq!(read(&[11, 0, 0, 0, 0, 2]), PeerFault::Field);
        let mut bytes = Vec::new();
        Frame::Accept { window: PeerWindow { len: 0, ..WINDOW } }.write(1, &mut bytes);
        assert_eq!(read(&bytes), PeerFault::Field);
        bytes.clear();
        Frame::Accept { window: PeerWindow { address: u64::MAX, ..WINDOW } }.write(1, &mut bytes);
        assert_eq!(read(&bytes), PeerFault::Field);
    }

    #[test]
    fn a_hello_reads_as_it_was_written() {
        let windows = vec![WindowOf { stream: 4, window: WINDOW }; 3];
        let mut hello = LinkHello { link: 3, attempt: 2, received: 9, windows, seal: None };
        let bytes = hello.to_bytes();
        let (header, body) = Header::read(&bytes).unwrap();
        assert_eq!(LinkHello::read(header, body), Ok(hello.clone()));
        hello.seal = Some(SealOffer { secret: [7; 8], random: [9; 32] });
        let with_offer = hello.to_bytes();
        let (same, longer) = Header::read(&with_offer).unwrap();
        assert_eq!(LinkHello::read(same, longer), Ok(hello));
        assert_eq!(LinkHello::read(same, &longer[..longer.len() - 1]), Err(PeerFault::Short));
        assert_eq!(LinkHello::read(header, &body[1..]), Err(PeerFault::Short));
        let mut many = body.to_vec();
        many[4..8].fill(0xff);
        assert_eq!(LinkHello::read(header, &many), Err(PeerFault::Short));
    }

    proptest! {
        #[test]
        fn rubbish_ends_in_a_fault_or_in_frames_that_write_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = FrameReader::new(&bytes);
            let mut again = Vec::new();
            while let Ok(Some((stream, frame))) = reader.next_frame() {
                frame.write(stream, &mut again);
            }
            prop_assert!(bytes.starts_with(&again));
            let _ = Header::read(&bytes).and_then(|(header, body)| LinkHello::read(header, body));
        }
    }
}
