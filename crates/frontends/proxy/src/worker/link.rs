//! One link to a worker of a peer: the numbered batches in both directions, its connections and their memory.
//!
//! Batches leave by the transport of the moment ([`LinkTransport`]). On a queue pair, RDMA WRITEs put the bytes of streams into
//! the peer's windows before the batch that announces them; on the control channel a batch carries them. When another transport
//! begins, both sides exchange a hello: what each has received, and where its windows are.

use super::conn::ProxyConn;
use super::env::WorkerEnv;
use super::link_transport::LinkTransport;
use super::round_trips::RoundTrips;
use super::seals::LinkSeals;
use super::snapshot::LinkView;
use super::stream_record::RecordedLink;
use super::table::{ConnTable, TableKey};
use crate::counters::ProxyCounter;
use crate::message::{ControlMessage, Report};
use crate::pool::WindowPool;
use crate::rdma::{CmId, Write};
use burst_relay::{
    Batch, Frame, FrameReader, HEADER_BYTES, LinkHello, LinkInbox, LinkOutbox, LinkSealer, Novelty, PeerFault,
    PeerWindow, SealOffer, SealedDirection, Stream, WindowOf,
};
use std::collections::{HashMap, VecDeque};
use std::io::{Error, Result};
use std::sync::Arc;
use std::time::Instant;

/// Batches of a link that may wait for the peer's acknowledgements, beside those under way.
const WAITING_MAX: usize = 1024;
/// Refused streams of a link whose last frame the peer may owe.
const REFUSED_MAX: u64 = 4096;

/// One link.
#[derive(Debug)]
pub(super) struct PeerLink {
    /// Number of the peer in this process.
    pub(super) peer: usize,
    /// Number of the link between the two proxies.
    pub(super) number: u32,
    /// Whether this side dials.
    pub(super) dials: bool,
    /// Before `pool`: a queue pair ends before the memory that its peer may write.
    pub(super) transport: LinkTransport,
    pub(super) seals: LinkSeals,
    pub(super) outbox: LinkOutbox,
    pub(super) inbox: LinkInbox,
    pub(super) round_trips: RoundTrips,
    pub(super) conns: ConnTable<ProxyConn>,
    /// Keys of `conns` by the ids of their streams.
    keys: HashMap<u32, TableKey>,
    /// Connections that wait for room in the outbox, oldest first.
    pub(super) waiting: VecDeque<TableKey>,
    pub(super) pool: WindowPool,
    /// The link is in the list of those that may have something to send.
    pub(super) is_dirty: bool,
    /// The link is in the list of those whose connections have waited for room.
    pub(super) is_unblocked: bool,
    next_id: u32,
    last_opened: u32,
    /// The WRITEs of the batch that is being sent.
    writes: Vec<Write>,
}

impl PeerLink {
    /// A link without a transport; `peer`, `number`: as [`PeerLink::peer`] and [`PeerLink::number`].
    pub(super) fn new((peer, number): (usize, u32), dials: bool, pool: WindowPool, seals: LinkSeals) -> Self {
        Self {
            peer,
            number,
            dials,
            transport: LinkTransport::default(),
            outbox: LinkOutbox::default(),
            inbox: LinkInbox::default(),
            round_trips: RoundTrips::default(),
            conns: ConnTable::default(),
            keys: HashMap::new(),
            waiting: VecDeque::new(),
            pool,
            is_dirty: false,
            is_unblocked: false,
            seals,
            next_id: if dials { 1 } else { 2 },
            last_opened: 0,
            writes: Vec::new(),
        }
    }

    /// Whether an identifier of connection management is that of the queue pair, or of the attempt to make one.
    pub(super) fn has_id(&self, id: CmId) -> bool {
        self.transport.resolving == Some(id) || self.transport.qp.as_ref().is_some_and(|qp| qp.id() == id)
    }

    /// The id of a new stream of this side; `None`: they are used up. Ids of each side go up by two; the dialing side has the
    /// odd ones.
    pub(super) fn take_id(&mut self) -> Option<u32> {
        let id = self.next_id;
        self.next_id = id.checked_add(2)?;
        Some(id)
    }

    /// A stream that the peer opens. `memory_streams`: so many have memory.
    ///
    /// # Errors
    /// [`PeerFault::InUse`]; [`PeerFault::TooMuch`]: each stream has memory, or was refused and waits for the peer's last
    /// frame.
    pub(super) fn opened_by_peer(
        &mut self,
        id: u32,
        window: PeerWindow,
        memory_streams: u64,
    ) -> std::result::Result<Stream, PeerFault> {
        if (id % 2 == 1) == self.dials || id <= self.last_opened {
            return Err(PeerFault::InUse(id));
        }
        self.last_opened = id;
        if self.conns.len() as u64 >= memory_streams + REFUSED_MAX {
            return Err(PeerFault::TooMuch);
        }
        let ring = self.pool.ring_len();
        Ok(Stream::new(id, ring, ring, Some(window)))
    }

    /// Adds a connection, whose stream has a new id.
    pub(super) fn add(&mut self, env: &mut WorkerEnv, conn: ProxyConn) -> TableKey {
        let id = conn.stream.id();
        let key = self.conns.insert(&mut env.generations, conn);
        let before = self.keys.insert(id, key);
        debug_assert!(before.is_none(), "ids only go up");
        key
    }

    /// The key of the connection whose stream has an id.
    pub(super) fn find(&self, id: u32) -> Option<TableKey> {
        self.keys.get(&id).copied()
    }

    /// Forgets a connection whose stream neither side will name again.
    pub(super) fn forget_if_gone(&mut self, key: TableKey) {
        if !self.conns.get(key).is_some_and(|conn| conn.stream.gone()) {
            return;
        }
        let Some(conn) = self.conns.remove(key) else { return };
        self.keys.remove(&conn.stream.id());
        if let Some(slot) = conn.slot {
            self.pool.give(slot);
        }
    }

    /// Takes the number and acknowledgement of a batch of the peer; false if it has come before.
    ///
    /// # Errors
    /// A [`PeerFault`] of either.
    pub(super) fn take_batch(&mut self, seq: u64, ack: u64) -> std::result::Result<bool, PeerFault> {
        self.outbox.acknowledged(ack)?;
        self.round_trips.acknowledged(ack, self.transport.by_channel, Instant::now());
        Ok(self.inbox.take(seq)? == Novelty::New)
    }

    /// Whether frames of the peer have led to something to send.
    ///
    /// # Errors
    /// [`PeerFault::TooMuch`]: the peer's frames make this side answer each, and the peer takes no answers.
    pub(super) fn answer_due(&self) -> std::result::Result<bool, PeerFault> {
        if self.outbox.waiting() > WAITING_MAX {
            return Err(PeerFault::TooMuch);
        }
        Ok(self.inbox.ack_due() || self.outbox.ready(&self.inbox) || !self.waiting.is_empty())
    }

    /// The link has lost its transport: reports it, also to the peer if that dials.
    pub(super) fn report_down(&self, env: &mut WorkerEnv) {
        let (peer, link, attempt) = (self.peer, self.number, self.transport.attempt);
        env.report(Report::PeerLink { peer, link, up: false });
        if !self.dials {
            env.report(Report::ToPeer(peer, ControlMessage::Broken { link, attempt }));
        }
        env.timer.start();
    }

    /// One direction of the present queue pair.
    fn direction(&self, of_dialer: bool) -> SealedDirection {
        SealedDirection { link: self.number, attempt: self.transport.attempt, of_dialer }
    }

    /// Opens a message that the queue pair has brought, if the link is encrypted.
    ///
    /// # Errors
    /// [`PeerFault::Unauthentic`].
    pub(super) fn open_message(&mut self, message: &mut Vec<u8>) -> std::result::Result<(), PeerFault> {
        match &mut self.transport.opener {
            Some(opener) => opener.open_message(message),
            None if self.seals.is_on() => Err(PeerFault::Unauthentic),
            None => Ok(()),
        }
    }

    /// A PLACED was read: on an encrypted link its message has a tag for it. The control channel carries none.
    ///
    /// # Errors
    /// [`PeerFault::Unauthentic`].
    pub(super) fn count_place(&mut self) -> std::result::Result<(), PeerFault> {
        match &mut self.transport.opener {
            Some(opener) => opener.take_place(),
            None if self.seals.is_on() => Err(PeerFault::Unauthentic),
            None => Ok(()),
        }
    }

    /// The peer's hello for a queue pair: makes the key by which this side encrypts. False: the peer names a channel's secret
    /// that this side does not know.
    ///
    /// # Errors
    /// [`PeerFault::Offer`]: the hello does not agree with whether the link is encrypted.
    pub(super) fn take_offer(&mut self, offer: Option<SealOffer>) -> std::result::Result<bool, PeerFault> {
        if offer.is_some() != self.seals.is_on() {
            return Err(PeerFault::Offer);
        }
        let Some(offer) = offer else { return Ok(true) };
        self.transport.sealer = self.seals.sealer(&offer, self.direction(self.dials));
        Ok(self.transport.sealer.is_some())
    }

    /// Sends this side's hello of the present attempt.
    pub(super) fn say_hello(&mut self, env: &WorkerEnv) {
        let mut seal = None;
        if !self.transport.by_channel && self.seals.is_on() {
            match self.seals.opener(self.direction(!self.dials)) {
                Ok((offer, opener)) => (seal, self.transport.opener) = (Some(offer), Some(opener)),
                // Without a hello the attempt ends in time.
                Err(why) => return crate::log(format_args!("link {}: {why}", self.number)),
            }
        }
        self.inbox.resume();
        let windows = self.conns.iter().flat_map(|conn| {
            let windows = conn.slot.into_iter().flat_map(|slot| self.pool.windows(slot));
            windows.map(|window| WindowOf { stream: conn.stream.id(), window })
        });
        let (link, received, by_channel) = (self.number, self.inbox.received(), self.transport.by_channel);
        let (attempt, windows) = (self.transport.hello_attempt(), windows.collect());
        let hello = LinkHello { link, attempt, received, windows, seal };
        let message = ControlMessage::LinkHello { by_channel, bytes: hello.to_bytes() };
        env.report(Report::ToPeer(self.peer, message));
    }

    /// Another transport begins: sends again what the peer has not received, into windows that may have moved.
    ///
    /// # Errors
    /// [`PeerFault::Ack`] if the peer claims what was not sent.
    pub(super) fn resume(&mut self, hello: LinkHello) -> std::result::Result<(), PeerFault> {
        for WindowOf { stream, window } in hello.windows {
            let known = self.keys.get(&stream).and_then(|key| self.conns.get_mut(*key));
            if let Some(conn) = known.filter(|conn| conn.stream.peer_window().is_some()) {
                conn.stream.move_peer_window(window);
            }
        }
        let (keys, conns, pool) = (&self.keys, &self.conns, &self.pool);
        self.outbox.move_windows(|id, len| {
            let slot = conns.get(*keys.get(&id)?)?.slot?;
            pool.windows(slot).find(|window| window.len == len)
        });
        self.outbox.resume(hello.received)
    }

    /// Sends batches while there are any and the transport has room.
    ///
    /// # Errors
    /// The queue pair has failed.
    pub(super) fn send(&mut self, env: &mut WorkerEnv) -> Result<()> {
        while self.send_next(env)? {}
        Ok(())
    }

    /// Sends a batch, if there is one and the transport has room.
    fn send_next(&mut self, env: &mut WorkerEnv) -> Result<bool> {
        let transport = &mut self.transport;
        if let (Some(qp), false) = (&mut transport.qp, transport.by_channel)
            && !qp.room()?
        {
            return Ok(false);
        }
        let Some(batch) = self.outbox.next(&mut self.inbox) else { return Ok(false) };
        self.round_trips.sent(batch.seq, Instant::now());
        env.count(ProxyCounter::MessagesSent);
        env.counters.add(ProxyCounter::FramesSent, batch.frames.into());
        env.counters.add(ProxyCounter::WritesSent, batch.places.len() as u64);
        let (keys, conns) = (&self.keys, &self.conns);
        let conn = |id: u32| conns.get(*keys.get(&id)?);
        if transport.by_channel {
            let bytes = with_data(batch, conn, &mut self.pool);
            let message = ControlMessage::Batch { link: self.number, attempt: transport.channel_attempt, bytes };
            env.report(Report::ToPeer(self.peer, message));
            return Ok(true);
        }
        let Some(qp) = &mut transport.qp else { return Ok(false) };
        let sealer = transport.sealer.as_mut();
        if sealer.is_none() && self.seals.is_on() {
            return Err(Error::other("an encrypted link has no key"));
        }
        let mut sealing = sealer.map(|sealer| Sealing { sealer, scratch: &mut self.seals.scratch });
        set_writes(&mut self.writes, batch, conn, &mut self.pool, sealing.as_mut())?;
        match sealing {
            Some(Sealing { sealer, scratch }) => {
                sealer.seal_message(&batch.bytes, scratch);
                qp.send(batch.seq, scratch, &self.writes)?;
            }
            None => qp.send(batch.seq, &batch.bytes, &self.writes)?,
        }
        Ok(true)
    }

    /// For records of streams. `peer`: its name.
    pub(super) fn recorded(&self, peer: Arc<str>) -> RecordedLink {
        RecordedLink { peer, number: self.number, carrier: self.transport.carrier(), encrypted: self.is_encrypted() }
    }

    /// Whether what travels now is encrypted: by AES-GCM, or by the control channel's TLS.
    fn is_encrypted(&self) -> bool {
        self.transport.active && (self.transport.by_channel || self.seals.is_on())
    }

    /// For `burst proxy ls`. `peer`: its name.
    pub(super) fn view(&self, peer: String) -> LinkView {
        let round_trip = self.round_trips.shortest(self.transport.by_channel);
        LinkView {
            peer,
            link: self.number,
            carrier: self.transport.carrier(),
            encrypted: self.is_encrypted(),
            streams: self.conns.len(),
            attempts: self.transport.attempt,
            memory: self.pool.mapped(),
            round_trip_us: round_trip.map(|time| time.as_micros() as u64),
        }
    }
}

/// What encrypts the bytes of a batch.
struct Sealing<'a> {
    sealer: &'a mut LinkSealer,
    scratch: &'a mut Vec<u8>,
}

/// The WRITEs that precede a batch, whose bytes are encrypted if `sealing` is there. Places of streams that are gone are left
/// out: the peer ignores them.
///
/// # Errors
/// The ring of a stream is not registered: the peer must not hear of bytes that were not written.
fn set_writes<'a>(
    writes: &mut Vec<Write>,
    batch: &Batch,
    conn: impl Fn(u32) -> Option<&'a ProxyConn>,
    pool: &mut WindowPool,
    mut sealing: Option<&mut Sealing<'_>>,
) -> Result<()> {
    writes.clear();
    for place in &batch.places {
        let known = conn(place.stream).and_then(|conn| Some((conn.slot?, conn.stream.peer_window_at(place.offset)?)));
        let Some((slot, window)) = known else {
            sealing.iter_mut().for_each(|sealing| sealing.sealer.skip_place());
            continue;
        };
        let Some((local, lkey)) = pool.ring_address(slot, place.offset) else {
            return Err(Error::other("a ring is not registered"));
        };
        if let Some(Sealing { sealer, scratch }) = sealing.as_deref_mut() {
            pool.seal_ring(slot, *place, scratch, |bytes| sealer.seal_place(*place, bytes));
        }
        let remote = window.address + place.offset % u64::from(window.len);
        writes.push(Write { local, remote, len: place.len, lkey, rkey: window.rkey });
    }
    Ok(())
}

/// A batch with the data of its places inside, for the control channel.
fn with_data<'a>(batch: &Batch, conn: impl Fn(u32) -> Option<&'a ProxyConn>, pool: &mut WindowPool) -> Vec<u8> {
    if batch.places.is_empty() {
        return batch.bytes.clone();
    }
    let mut bytes = batch.bytes[..HEADER_BYTES].to_vec();
    let mut frames = FrameReader::new(&batch.bytes[HEADER_BYTES..]);
    // Written by this process: it can be read.
    while let Ok(Some((id, frame))) = frames.next_frame() {
        let Frame::Placed { offset, len } = frame else {
            frame.write(id, &mut bytes);
            continue;
        };
        if let Some(slot) = conn(id).and_then(|conn| conn.slot) {
            Frame::Data { offset, bytes: pool.ring(slot, offset, len as usize) }.write(id, &mut bytes);
        }
    }
    bytes
}
