//! A transport channel (TP channel): one for each pair of hosts, or one for each of their lanes ([`crate::channels::lanes`]),
//! shared by all their Jetties. It knows no Jetty.
//!
//! A channel is opened by two management messages: REQUEST with number, first PSN and incarnation of the sender, and REPLY
//! with the same and an echo of the request. Both ends may ask at once; each then opens with the REPLY to its own REQUEST.
//! When a REQUEST comes for a channel that is open with other values, the peer has restarted, or the message is late or
//! forged. A CHALLENGE with the values of the present channel tells which: only who asks now echoes them in another REQUEST,
//! and that ends the present channel. END says that its sender has ended a channel, with the values of both ends. UNKNOWN
//! says that a packet came on a channel that its sender does not have ([`crate::channels::restart`]).

use crate::api::UrmaConfig;
use crate::caqm::{CaqmEcho, CaqmWindow};
use crate::channels::management::{TpMessage, TpMessageKind};
use crate::channels::rx_window::{DeliveredPackets, RX_WINDOW, RxWindow};
use crate::channels::tx_window::{TxLimits, TxOwner, TxPacket, TxWindow, rto};
use crate::check::must;
use crate::initiator::send_record::SendRecord;
use crate::node_eid::NodeEid;
use crate::paths::{FlightBytes, NO_PATH, PathRoom};
use crate::pool::{PoolList, PoolRef};
use burst_base::rng::Rng;
use burst_base::{Nanos, Psn};
use burst_ubwire::{Rtph, TpOpcode, UbStatus};
use std::collections::VecDeque;

/// A packet asks for an acknowledgement at least once in so many.
pub(crate) const ACK_EVERY: u32 = 16;
/// Packets of one message in its turn.
const TURN_PACKETS: u8 = 8;

/// State of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelState {
    /// REQUESTs are sent; the peer's values are not known.
    Opening,
    /// Open.
    Open,
}

/// How good a lane is for a request. Smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LaneHealth {
    /// It is open, and the peer was heard.
    Heard,
    /// It is open, but no packet of the peer has come yet, or none in the last time-out.
    Silent,
    /// It is being opened.
    Opening,
}

/// A transaction acknowledgement that leaves in a transport acknowledgement (ROL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FusedAck {
    pub(crate) rc_id: u32,
    pub(crate) tassn: u16,
}

/// A channel.
#[derive(Debug)]
pub(crate) struct TpChannel {
    pub(crate) peer: NodeEid,
    /// Which of the channels to the peer it is.
    pub(crate) lane: u8,
    /// Lanes that the peer takes; 1 until it is known.
    pub(crate) peer_lanes: u8,
    /// Life of the peer; 0 until it is known, and of one with one lane.
    pub(crate) peer_life: u8,
    /// How often the lane has failed since a packet of the peer came on it.
    pub(crate) failures: u8,
    pub(crate) local_tpn: u32,
    pub(crate) peer_tpn: u32,
    pub(crate) incarnation: u64,
    pub(crate) peer_incarnation: u64,
    pub(crate) peer_first_psn: Psn,
    pub(crate) state: ChannelState,
    pub(crate) first_psn: Psn,
    pub(crate) tx: TxWindow,
    pub(crate) rx: RxWindow,
    pub(crate) window: CaqmWindow,
    /// The path to the peer; [`NO_PATH`] before something was to be sent.
    pub(crate) path: u32,
    /// In flight, as was reported to the path.
    pub(crate) reported: FlightBytes,
    /// In the list of channels that wait for their path.
    pub(crate) is_blocked: bool,
    pub(crate) echo: CaqmEcho,
    pub(crate) next_tpmsn: u32,
    /// Requests that have packets to send; each sends a few in turn.
    pub(crate) queue: VecDeque<TxOwner>,
    /// Responses. They may exceed the window of the requests: a peer accepts requests only while it can send its own
    /// responses, and two peers whose requests fill both windows would wait for each other.
    pub(crate) answers: VecDeque<TxOwner>,
    /// The next turn is a response's.
    pub(crate) is_answers_turn: bool,
    pub(crate) fused: VecDeque<FusedAck>,
    pub(crate) ack_due: bool,
    /// When the acknowledgement of lone answers is due, if nothing has carried it until then.
    pub(crate) ack_at: Nanos,
    pub(crate) nak_due: bool,
    /// Expected PSN for which a NAK was sent last (go-back-N).
    pub(crate) nak_sent: Option<Psn>,
    pub(crate) packets_to_ack: u8,
    /// The peer takes acknowledgements of packets from TAACKs, as its last packet of data has said.
    pub(crate) peer_reads_acks: bool,
    /// Packets that the message at the head of the queue has sent in its turn.
    pub(crate) turn: u8,
    /// In the list of channels that may have something to send.
    pub(crate) is_active: bool,
    /// The peer may have restarted: it is asked, and nothing but acknowledgements leaves until it answers.
    pub(crate) is_doubted: bool,
    /// The peer was asked, has answered from the same life, and no new packet has left since, however long ago that was: a node
    /// that is seldom run would ask for ever.
    pub(crate) is_confirmed: bool,
    /// The next REQUEST is due (opening, or in doubt).
    pub(crate) ask_at: Nanos,
    pub(crate) asks: u8,
    /// Time of this channel's entry in the timer heap.
    pub(crate) timer_at: Nanos,
    /// Time of the last packet from the peer.
    pub(crate) heard_at: Nanos,
    /// First REQUEST, or first of the time-outs in a row.
    pub(crate) quiet_since: Nanos,
    /// A packet of the peer has arrived.
    pub(crate) is_used: bool,
    /// Requests to the peer that are issued and not answered.
    pub(crate) unanswered: u32,
    /// Their bytes, in either direction.
    pub(crate) load: u64,
    /// Those requests, in the order in which they were issued.
    pub(crate) requests: PoolList,
    /// How many of them have each error time-out ([`crate::JettyConfig::err_timeout`]).
    err_timeouts: [u32; ERR_TIMEOUTS],
    /// A sweep of its requests is queued ([`crate::initiator::sweep`]).
    pub(crate) is_swept: bool,
    /// The incomplete message of the peer to which a packet belonged last.
    pub(crate) last_message: PoolRef,
    /// Messages of the peer that are incomplete or wait.
    pub(crate) inbound: u32,
    pub(crate) messages: PoolList,
    /// Those of them that wait for earlier requests.
    pub(crate) waiting: u32,
    /// Responses to the peer that wait or are not acknowledged.
    pub(crate) responses: u32,
    /// Messages that were refused before their last packet came: TPMSN, and the PSN of the packet that was refused.
    pub(crate) refused: VecDeque<(u32, Psn)>,
    /// Payloads of the peer's messages in the reorder buffer.
    pub(crate) held: u32,
    /// Sequence contexts of the peer's Jetties.
    pub(crate) contexts: u32,
    pub(crate) context_list: PoolList,
}

/// Number of the error time-outs of Jetties.
const ERR_TIMEOUTS: usize = crate::api::ERR_TIMEOUT_MAX as usize + 1;

/// The peer is asked for a sign of life when it was silent for the time-out of so many tries and something is awaited.
const SILENCE_TRIES: u8 = 4;
/// Silence after which a channel on which nothing is in flight asks before it sends.
const STALE_AFTER: Nanos = Nanos::from_ms(200);
/// Packets after which an acknowledgement is sent without being asked for.
const ACK_PACKETS_MAX: u8 = 16;
/// How long the acknowledgement of an answer waits for something that carries it, or for further answers. Less than the sender's
/// probe: `PROBE_MIN` if the round trip is short, else four round trips.
pub(crate) const ACK_DELAY: Nanos = Nanos::from_us(30);
/// How long an acknowledgement waits for which no packet has asked. The peer asks with the packet that it believes to be its last
/// one for a time; but what it shares with others, the room of a path and its rate, they may take before its next packet. Streams
/// ask more often than this from 70 Mbit/s on: with 240 us one of 300 Mbit/s at a round trip of 4 ms had half of its rate.
pub(crate) const UNASKED_DELAY: Nanos = Nanos::from_us(2_000);
/// Queues longer than this give their memory back when they are empty.
const KEEP: usize = 32;

impl TpChannel {
    /// A channel that is not open yet.
    pub(crate) fn new((peer, lane): (NodeEid, u8), incarnation: u64, config: &UrmaConfig, rng: &mut Rng) -> Self {
        let first_psn = Psn::new(rng.next_u32());
        TpChannel {
            peer,
            lane,
            peer_lanes: 1,
            peer_life: 0,
            failures: 0,
            local_tpn: 0,
            peer_tpn: 0,
            incarnation,
            peer_incarnation: 0,
            peer_first_psn: Psn::new(0),
            state: ChannelState::Opening,
            first_psn,
            tx: TxWindow::new(first_psn, config),
            rx: RxWindow::new(Psn::new(0)),
            window: CaqmWindow::new(u32::from(config.mtu), config.window_max),
            path: NO_PATH,
            reported: FlightBytes::default(),
            is_blocked: false,
            echo: CaqmEcho::default(),
            next_tpmsn: 0,
            queue: VecDeque::new(),
            answers: VecDeque::new(),
            is_answers_turn: false,
            fused: VecDeque::new(),
            ack_due: false,
            ack_at: Nanos::NEVER,
            nak_due: false,
            nak_sent: None,
            packets_to_ack: 0,
            peer_reads_acks: false,
            turn: 0,
            is_active: false,
            is_doubted: false,
            is_confirmed: false,
            ask_at: Nanos(0),
            asks: 0,
            timer_at: Nanos::NEVER,
            heard_at: Nanos(0),
            quiet_since: Nanos(0),
            is_used: false,
            unanswered: 0,
            load: 0,
            requests: PoolList::EMPTY,
            err_timeouts: [0; ERR_TIMEOUTS],
            is_swept: false,
            last_message: PoolRef::NONE,
            inbound: 0,
            messages: PoolList::EMPTY,
            waiting: 0,
            responses: 0,
            refused: VecDeque::new(),
            held: 0,
            contexts: 0,
            context_list: PoolList::EMPTY,
        }
    }
    /// The peer's values are known.
    pub(crate) fn open(&mut self, message: &TpMessage, now: Nanos) {
        debug_assert!(message.lanes > 0, "a peer takes no lane");
        self.heard_at = now;
        (self.peer_tpn, self.peer_incarnation) = (message.tpn, message.incarnation);
        self.peer_first_psn = message.psn;
        (self.peer_lanes, self.peer_life) = (message.lanes, message.life);
        self.rx = RxWindow::new(message.psn);
        self.state = ChannelState::Open;
    }
    /// Whether a message was refused before its last packet came. The peer has sent its packets within a window.
    pub(crate) fn is_refused(&mut self, tpmsn: u32) -> bool {
        let expected = self.rx.expected();
        while self.refused.front().is_some_and(|(_, psn)| !expected.is_before(psn.add(RX_WINDOW))) {
            self.refused.pop_front();
        }
        self.refused.iter().any(|refused| refused.0 == tpmsn)
    }
    /// Whether only a REQUEST has come from the peer, which anybody may have sent.
    pub(crate) fn is_idle_from_birth(&self) -> bool {
        self.state == ChannelState::Open && !self.is_used && self.unanswered == 0 && self.tx.is_empty()
    }
    /// A request to the peer is issued on it.
    pub(crate) const fn begin(&mut self, request: &SendRecord) {
        debug_assert!((request.err_timeout as usize) < ERR_TIMEOUTS);
        self.unanswered += 1;
        self.load += request.load();
        self.err_timeouts[request.err_timeout as usize % ERR_TIMEOUTS] += 1;
        debug_assert!(self.err_timeouts[request.err_timeout as usize % ERR_TIMEOUTS] <= self.unanswered);
    }
    /// It is answered, or goes on on another lane.
    pub(crate) const fn end(&mut self, request: &SendRecord) {
        debug_assert!(self.unanswered > 0 && self.load >= request.load(), "a request ends twice");
        self.unanswered -= 1;
        self.load -= request.load();
        debug_assert!(self.err_timeouts[request.err_timeout as usize % ERR_TIMEOUTS] > 0);
        self.err_timeouts[request.err_timeout as usize % ERR_TIMEOUTS] -= 1;
    }
    /// The longest error time-out of the requests that are issued and not answered; the channel does not fail before. `None`:
    /// there are no such requests.
    pub(crate) fn err_timeout(&self) -> Option<Nanos> {
        let longest = self.err_timeouts.iter().rposition(|requests| *requests > 0)?;
        Some(crate::api::err_timeout(longest as u8))
    }
    /// Whether a message is of the peer's end of this channel.
    pub(crate) fn is_of_peer(&self, message: &TpMessage) -> bool {
        let known = (self.peer_tpn, self.peer_incarnation, self.peer_first_psn);
        self.state == ChannelState::Open && known == (message.tpn, message.incarnation, message.psn)
    }
    /// Whether a message echoes this end.
    pub(crate) fn is_echoed(&self, message: &TpMessage) -> bool {
        (message.echo_tpn, message.echo_incarnation) == (self.local_tpn, self.incarnation)
    }
    /// When something is due.
    pub(crate) fn deadline(&self, config: &UrmaConfig) -> Nanos {
        match self.state {
            ChannelState::Opening => self.ask_at,
            ChannelState::Open if self.is_doubted => self.ask_at.min(self.ack_at),
            ChannelState::Open if self.tx.is_empty() && self.awaits() => self.sign_of_life_at(config).min(self.ack_at),
            ChannelState::Open => self.tx.deadline(config).min(self.ack_at),
        }
    }
    /// When a silent peer is asked for a sign of life.
    pub(crate) fn sign_of_life_at(&self, config: &UrmaConfig) -> Nanos {
        self.heard_at + rto(config, SILENCE_TRIES, self.tx.srtt())
    }
    /// Another time-out has passed in silence. Whether it is the last one, and the longest error time-out has passed as well.
    pub(crate) fn has_failed(&mut self, now: Nanos, config: &UrmaConfig) -> bool {
        let is_spent = if self.is_asking() {
            self.asks > config.rto_tries
        } else {
            let tries = self.tx.silent_tries();
            if tries == 0 {
                self.quiet_since = now;
            }
            tries >= config.rto_tries
        };
        let quiet = now.since(self.quiet_since);
        is_spent && (config.rto_tries == 0 || self.err_timeout().is_none_or(|error| quiet >= error))
    }
    /// Packets of data have been delivered: an acknowledgement is due, now or later.
    #[inline]
    pub(crate) fn packets_delivered(&mut self, now: Nanos, packets: &DeliveredPackets) {
        match packets.count {
            1 => self.rx.received(packets.psn),
            count => self.rx.received_run(packets.psn, count.into()),
        }
        self.packets_to_ack = self.packets_to_ack.saturating_add(packets.count);
        // An echo is what the peer's window waits for.
        let is_answer = packets.is_carrier && !self.echo.is_due();
        if packets.ack_req && !is_answer || self.rx.has_gap() || self.packets_to_ack >= ACK_PACKETS_MAX {
            self.ack_due = true;
        } else if !self.ack_due {
            self.ack_at = self.ack_at.min(now + if packets.ack_req { ACK_DELAY } else { UNASKED_DELAY });
        }
    }
    /// An acknowledgement leaves.
    pub(crate) const fn acknowledged(&mut self) {
        (self.ack_due, self.ack_at, self.packets_to_ack) = (false, Nanos::NEVER, 0);
    }
    /// Whether REQUESTs are sent.
    pub(crate) fn is_asking(&self) -> bool {
        self.state == ChannelState::Opening || self.is_doubted
    }
    /// Whether something should come from the peer.
    const fn awaits(&self) -> bool {
        self.unanswered > 0 || self.inbound > 0
    }
    /// A REQUEST was sent: the next one is due after the time-out of this many tries.
    pub(crate) fn asked(&mut self, now: Nanos, config: &UrmaConfig) {
        debug_assert!(self.is_asking(), "an open channel asks");
        if self.asks == 0 {
            self.quiet_since = now;
        }
        self.ask_at = now + rto(config, self.asks, Nanos(0));
        self.asks = self.asks.saturating_add(1);
    }
    /// Adds a message that waits for its turn.
    pub(crate) fn enqueue(&mut self, owner: TxOwner) {
        match owner {
            TxOwner::Request(..) => self.queue.push_back(owner),
            TxOwner::Response(_) | TxOwner::Busy { .. } | TxOwner::Filler => self.answers.push_back(owner),
        }
    }
    /// What may be in flight on a path with this room.
    pub(crate) fn limits(&self, config: &UrmaConfig, path: PathRoom) -> TxLimits {
        let window = if config.caqm { self.window.bytes() } else { config.window_max };
        TxLimits { window, mtu: config.mtu.into(), path }
    }
    /// Whether it is the responses' turn, among the queues that may send within these limits.
    #[inline]
    pub(crate) fn next_turn(&self, limits: &TxLimits) -> Option<bool> {
        let may_ask = !self.queue.is_empty() && self.tx.has_room(limits, false);
        let may_answer = !self.answers.is_empty() && self.tx.has_room(limits, true);
        match (may_ask, may_answer) {
            (false, false) => None,
            (true, false) => Some(false),
            (true, true) => Some(self.is_answers_turn),
            (false, true) => Some(true),
        }
    }
    /// The queue of the responses or of the requests.
    pub(crate) const fn queue_of(&mut self, is_answers: bool) -> &mut VecDeque<TxOwner> {
        if is_answers { &mut self.answers } else { &mut self.queue }
    }
    /// The message at the head of a queue has sent a packet, its last one if it `is_done`. True: its turn is over, and another
    /// message has the next one, if there is another.
    pub(crate) fn end_packet(&mut self, is_answers: bool, is_done: bool) -> bool {
        debug_assert!(self.turn < TURN_PACKETS, "a turn goes on after its end");
        self.turn += 1;
        let is_over = is_done || self.turn >= TURN_PACKETS;
        if is_over {
            let queue = self.queue_of(is_answers);
            if is_done {
                queue.pop_front();
            } else {
                queue.rotate_left(1);
            }
            (self.turn, self.is_answers_turn) = (0, !self.is_answers_turn);
        }
        is_over
    }
    /// Whether no other message than this request waits.
    pub(crate) fn is_only(&self, owner: TxOwner) -> bool {
        self.queue.len() == 1 && self.queue.front() == Some(&owner) && self.answers.is_empty()
    }
    /// Whether nothing at all is ready to be sent, whatever the window.
    pub(crate) fn has_sent_all(&self) -> bool {
        let owes_ack = self.ack_due || self.nak_due || !self.fused.is_empty();
        self.has_nothing_to_send() && !owes_ack && !self.tx.has_lost() && !self.is_asking()
    }
    /// Whether something else than new packets is due, or they may not leave.
    pub(crate) fn owes_more_than_data(&self, now: Nanos) -> bool {
        let owes_ack = self.ack_due || self.nak_due || !self.fused.is_empty();
        owes_ack || self.tx.has_lost() || self.is_asking() || self.is_stale(now)
    }
    /// Whether packets of data from a node are the channel's, and change nothing here but the state of PSNs and of
    /// acknowledgements. Their heads name the node by the last 24 bits of its address, which another node's may have, too.
    pub(crate) fn takes_following_of(&self, from: NodeEid) -> bool {
        self.peer == from
            && self.state == ChannelState::Open
            && self.is_used
            && !self.is_doubted
            && self.refused.is_empty()
    }
    /// What a TAACK that leaves now may acknowledge: the PSN, if an acknowledgement of its own would say no more.
    pub(crate) fn acknowledgeable(&self) -> Option<Psn> {
        let is_plain = self.peer_reads_acks && !self.nak_due && self.fused.is_empty() && !self.echo.is_due();
        self.rx.all_arrived().filter(|_| is_plain)
    }
    /// The first response to be sent next, if the acknowledgement that is due may leave with it.
    pub(crate) fn carrier(&self, now: Nanos, limits: &TxLimits) -> Option<PoolRef> {
        let may_answer = self.tx.has_room(limits, true);
        let is_held_up = !may_answer || self.is_doubted || self.is_stale(now);
        match self.answers.front() {
            Some(TxOwner::Response(at)) if !is_held_up && self.acknowledgeable().is_some() => Some(*at),
            _ => None,
        }
    }
    pub(crate) const fn take_tpmsn(&mut self) -> u32 {
        let tpmsn = self.next_tpmsn;
        self.next_tpmsn = (tpmsn + 1) & 0xff_ffff;
        tpmsn
    }
    /// The header of a packet of data.
    pub(crate) const fn data_header(&self, psn: Psn, packet: &TxPacket, ack_req: bool) -> Rtph {
        Rtph {
            last: packet.last,
            opcode: TpOpcode::Data,
            version: 0,
            padding: 0,
            src_tpn: self.local_tpn,
            dst_tpn: self.peer_tpn,
            ack_req,
            flag: true,
            psn,
            status: UbStatus::SUCCESS,
            tpmsn: packet.tpmsn,
        }
    }
    /// Whether packets of data wait that nothing but a limit holds back.
    pub(crate) fn is_held_back(&self) -> bool {
        self.state == ChannelState::Open && !self.is_doubted && (self.tx.has_lost() || !self.has_nothing_to_send())
    }
    /// Whether a packet of data may leave within these limits: a repetition if there are any, else a new one.
    pub(crate) fn may_send(&self, limits: &TxLimits) -> bool {
        if self.tx.has_lost() { self.tx.may_repeat(limits) } else { self.next_turn(limits).is_some() }
    }
    /// Whether no message waits for its turn.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        self.queue.is_empty() && self.answers.is_empty()
    }
    /// How good its lane is for a request.
    pub(crate) fn health(&self) -> LaneHealth {
        match self.state {
            ChannelState::Opening => LaneHealth::Opening,
            ChannelState::Open if !self.is_used || self.is_doubted || self.tx.silent_tries() > 0 => LaneHealth::Silent,
            ChannelState::Open => LaneHealth::Heard,
        }
    }
    /// What must hold between two calls.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        must(self.tx.is_consistent(), "the packets in flight are counted wrong")?;
        must(self.rx.is_consistent(), "the arrived packets are recorded wrong")?;
        must(self.waiting <= self.inbound, "more messages wait than there are")?;
        must(
            self.err_timeouts.iter().sum::<u32>() == self.unanswered,
            "the requests are counted wrong by their error time-out",
        )?;
        let is_timed = self.timer_at != Nanos::NEVER || self.is_active;
        must(self.tx.is_empty() || is_timed, "packets are in flight, and no timer runs")
    }
    /// Gives memory of empty queues back.
    pub(crate) fn trim(&mut self) {
        if self.queue.is_empty() && self.queue.capacity() > KEEP {
            self.queue = VecDeque::new();
        }
        if self.answers.is_empty() && self.answers.capacity() > KEEP {
            self.answers = VecDeque::new();
        }
        if self.refused.is_empty() && self.refused.capacity() > KEEP {
            self.refused = VecDeque::new();
        }
        if self.fused.is_empty() && self.fused.capacity() > KEEP {
            self.fused = VecDeque::new();
        }
    }
    /// Whether something waits to be sent, nothing is in flight, and the peer was silent for long.
    pub(crate) fn is_stale(&self, now: Nanos) -> bool {
        self.tx.is_empty()
            && !self.is_confirmed
            && now.since(self.heard_at) >= STALE_AFTER
            && !self.has_nothing_to_send()
    }
    /// The peer may have restarted: it is asked.
    pub(crate) fn doubt(&mut self, now: Nanos) {
        (self.is_doubted, self.ask_at, self.asks) = (true, now, 0);
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.tx.heap_bytes()
            + self.rx.heap_bytes()
            + (self.queue.capacity() + self.answers.capacity()) * size_of::<TxOwner>()
            + self.fused.capacity() * size_of::<FusedAck>()
            + self.refused.capacity() * size_of::<(u32, Psn)>()
    }
    /// A message of this end, with an echo of a channel number and incarnation.
    pub(crate) const fn message(&self, kind: TpMessageKind, echo: (u32, u64), config: &UrmaConfig) -> TpMessage {
        TpMessage {
            kind,
            mtu: config.mtu,
            tpn: self.local_tpn,
            psn: self.first_psn,
            incarnation: self.incarnation,
            lane: self.lane,
            lanes: config.lanes,
            life: life_of(config),
            echo_tpn: echo.0,
            echo_incarnation: echo.1,
        }
    }
}

/// The life of a node that takes several lanes: one of them that has a new one shows that the others are of an older one.
const fn life_of(config: &UrmaConfig) -> u8 {
    let mixed =
        (config.seed ^ config.incarnation.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    if config.lanes > 1 { 1 + ((mixed >> 40) % 255) as u8 } else { 0 }
}
