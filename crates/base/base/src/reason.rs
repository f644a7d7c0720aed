//! The one table of reasons: why a packet was dropped, a request refused, a completion failed, a call denied.
//!
//! Each row gives the enum variant, the stable name (metric label and `burst why` key), the class, and two
//! sentences: what happened, and what to do about it. Counters are indexed by [`Reason::index`].

/// What kind of thing a reason explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A received packet was dropped silently.
    Drop,
    /// A received request was answered by a NAK.
    Nak,
    /// A work request ended with an error completion.
    Completion,
    /// A control call was refused.
    Refusal,
    /// Worth counting, nothing is wrong.
    Note,
}

macro_rules! reasons {
    ($($v:ident, $name:literal, $class:ident, $what:literal, $cure:literal;)+) => {
        /// Why something was dropped, refused or failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Reason { $(#[doc = $what] $v),+ }

        impl Reason {
            /// Every reason, in table order.
            pub const ALL: &'static [Reason] = &[$(Reason::$v),+];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();
            /// Position in the table: index of the counter, and `vendor_err` is this plus one.
            pub const fn index(self) -> usize { self as usize }
            /// Stable name, in metric style.
            pub const fn name(self) -> &'static str { match self { $(Reason::$v => $name),+ } }
            /// Class.
            pub const fn class(self) -> Class { match self { $(Reason::$v => Class::$class),+ } }
            /// One sentence: what happened.
            pub const fn explanation(self) -> &'static str { match self { $(Reason::$v => $what),+ } }
            /// One sentence: what to do.
            pub const fn cure(self) -> &'static str { match self { $(Reason::$v => $cure),+ } }
        }
    };
}

reasons! {
    // --- packets that never reach a queue pair
    Truncated, "truncated", Drop, "The packet is shorter than its headers say.", "Look for a faulty link or a sender that is not RoCEv2.";
    BadVersion, "bad_transport_version", Drop, "The BTH transport version is not 0.", "The sender is not a RoCEv2 stack.";
    UnknownOpcode, "unknown_opcode", Drop, "The BTH opcode is not one of RC, UC or UD that IBA defines.", "The sender uses a transport that Burst does not carry.";
    BadIcrc, "bad_icrc", Drop, "The invariant CRC does not match.", "The packet was corrupted, or a middle box rewrote fields that RoCEv2 protects.";
    BadPkey, "bad_pkey", Drop, "The partition key does not match the queue pair's.", "Use the default partition (P_Key index 0) on both ends.";
    UnknownQpn, "unknown_qpn", Drop, "No queue pair has the destination number.", "The peer talks to a queue pair that was destroyed, or to the wrong host.";
    WrongTransport, "wrong_transport", Drop, "The opcode's service type is not the queue pair's.", "Create both queue pairs with the same type.";
    WrongState, "wrong_state", Drop, "The queue pair is not ready to receive.", "Move the queue pair to RTR before the peer sends.";
    WrongSource, "wrong_source", Drop, "A connected queue pair got a packet from an address that is not its peer's.", "Check the GID index used at both ends.";
    BadQkey, "bad_qkey", Drop, "The Q_Key of a datagram does not match.", "Use the same Q_Key on both ends.";
    BadPadding, "bad_padding", Drop, "The pad count exceeds the payload, or the packet is not whole four-byte words.", "The sender is faulty.";
    TrailingBytes, "trailing_bytes", Drop, "Payload follows the headers of a packet that has none.", "The sender is faulty.";
    // --- responder
    DuplicateRequest, "duplicate_request", Note, "A request arrived again and was answered again.", "Nothing: an acknowledgement was lost or late.";
    DuplicateForgotten, "duplicate_forgotten", Drop, "A READ or atomic arrived again whose result is no longer kept.", "Nothing if rare: a duplicate that was on the way for long.";
    SequenceGap, "sequence_gap", Nak, "A request packet is missing before this one.", "Packets are lost or reordered on the way: check the path and socket buffers.";
    GapRepeated, "gap_repeated", Drop, "A packet after a gap that was already reported.", "Nothing: the peer is going back.";
    InvalidOpcodeSequence, "invalid_opcode_sequence", Nak, "A request's opcode does not follow the one before it.", "The sender is faulty.";
    InvalidLength, "invalid_length", Nak, "A packet's length does not fit its opcode, MTU or announced length.", "Both ends must use the same path MTU.";
    RemoteAccess, "remote_access", Nak, "The rkey, address range or access right does not allow the request.", "Check rkey, address and access flags of the memory region, and the QP's access flags.";
    InvalidRequest, "invalid_request", Nak, "The request is not allowed on this queue pair.", "Set qp_access_flags and max_dest_rd_atomic for what the peer does.";
    ReceiverNotReady, "receiver_not_ready", Nak, "No receive was posted.", "Post receives before the peer sends.";
    ReceiveTooShort, "receive_too_short", Nak, "A message is longer than the receive buffer.", "Post larger receive buffers.";
    ReceiveProtection, "receive_protection", Nak, "A receive's lkey, range or right is wrong.", "Check the lkey, the range and IBV_ACCESS_LOCAL_WRITE.";
    MisalignedAtomic, "misaligned_atomic", Nak, "An atomic's address is not a multiple of 8.", "Align atomic targets to 8 bytes.";
    TooManyReads, "too_many_reads", Nak, "More reads or atomics outstanding than max_dest_rd_atomic.", "Set max_rd_atomic of the peer to at most max_dest_rd_atomic here.";
    UdNoReceive, "ud_no_receive", Drop, "A datagram found no posted receive.", "Post more receives.";
    UdReceiveTooShort, "ud_receive_too_short", Drop, "A datagram is longer than its receive buffer.", "Leave 40 bytes for the GRH before the data.";
    UcMessageBroken, "uc_message_broken", Drop, "A UC message lost a packet and was dropped.", "UC does not repair loss: use RC, or check the path.";
    MulticastMissing, "multicast_unknown_group", Drop, "A multicast datagram for a group nobody attached to.", "Attach a queue pair to the group.";
    // --- requester
    StaleAck, "stale_ack", Drop, "An acknowledgement for something already finished.", "Nothing: duplicate or late.";
    UnexpectedResponse, "unexpected_response", Drop, "A response that no outstanding request asked for.", "Nothing if rare: late duplicates.";
    ImpliedNak, "implied_nak", Note, "An acknowledgement shows that a read or atomic response was lost.", "Nothing: it is asked for again.";
    SequenceNakReceived, "sequence_nak_received", Note, "The peer missed a packet; going back.", "Packets are lost on the way: check the path and socket buffers.";
    RnrNakReceived, "rnr_nak_received", Note, "The peer had no receive posted; trying again later.", "Post more receives at the peer.";
    AckTimeout, "ack_timeout", Note, "No acknowledgement in time; sending again.", "Check that the peer is reachable on UDP port 4791.";
    RetryExhausted, "retry_exhausted", Completion, "The peer did not answer after all retries.", "Check the address, the MTU of the path, a firewall on UDP port 4791, and that the peer's queue pair is in RTR.";
    RnrRetryExhausted, "rnr_retry_exhausted", Completion, "The peer had no receive posted after all RNR retries.", "Post receives at the peer, or raise rnr_retry (7 = for ever).";
    RemoteAccessReported, "remote_access_reported", Completion, "The peer refused the memory access.", "Check rkey, address, length and the peer's access flags.";
    RemoteInvalidReported, "remote_invalid_reported", Completion, "The peer refused the request as invalid.", "Check message size against the peer's receives, and its qp_access_flags.";
    RemoteOperationReported, "remote_operation_reported", Completion, "The peer could not complete the operation.", "Look at the peer's log and completions.";
    BadResponse, "bad_response", Completion, "The peer's response does not match the request.", "The peer is faulty.";
    LocalProtection, "local_protection", Completion, "An SGE's lkey, range or access right is wrong.", "Check lkey, address, length, and IBV_ACCESS_LOCAL_WRITE for reads and atomics.";
    LocalLength, "local_length", Completion, "The message is longer than the service allows.", "RC carries up to 2^31 bytes, UD one path MTU.";
    WindowBind, "window_bind", Completion, "A memory window cannot be bound, or a key not invalidated, as the request asks.", "The region needs IBV_ACCESS_MW_BIND and the same domain; a window of type 2 must be invalidated before it is bound again.";
    LocalOperation, "local_operation", Completion, "The work request is malformed.", "Check opcode, SGE count, inline length and queue pair type.";
    Flushed, "flushed", Completion, "The queue pair was in error before the request was carried out.", "Look at the first error completion of this queue pair.";
    CqOverrun, "cq_overrun", Completion, "A completion queue was full: the completion was lost, and its queue pair is in error.", "Create the CQ with room for all outstanding requests.";
    HandoverFull, "handover_full", Drop, "A packet for another worker's queue pair found that worker's inbox full.", "Use fewer workers, or spread load over more peers.";
    ProcessDied, "process_died", Note, "A process died with connected queue pairs; their peers were told by NAK.", "Look at why the process ended.";
    QueueCorrupt, "queue_corrupt", Completion, "The indices of a work queue in shared memory are impossible.", "The application overwrote its queues: look for stray writes.";
    // --- connection management
    MadMalformed, "mad_malformed", Drop, "A datagram for QP1 is not a management datagram of 256 bytes.", "The sender is faulty.";
    MadClass, "mad_unknown_class", Drop, "A management datagram of a class that is not carried.", "Nothing: only connection management is spoken over RoCE.";
    MadVersion, "mad_unknown_version", Drop, "A management datagram of another class version.", "Nothing: connection management is spoken in version 2.";
    MadUnknown, "mad_unknown_attribute", Drop, "A management datagram with an unknown method or attribute.", "Nothing: the sender asks for what is optional.";
    MadQueueFull, "mad_queue_full", Drop, "More management datagrams in one burst than the worker takes.", "Nothing if rare: they are sent again.";
    CmUnknownId, "cm_unknown_id", Drop, "A connection message names a communication id that nobody has.", "Nothing: it was late, or the peer restarted.";
    CmForged, "cm_forged", Drop, "A connection message came from an address or queue pair that is not the peer's.", "Look for a misconfigured or hostile host.";
    CmUnexpected, "cm_unexpected", Drop, "A connection message that does not fit the state of its connection.", "Nothing if rare: it was late or repeated.";
    CmDuplicate, "cm_duplicate", Note, "A connection message arrived again and was answered again.", "Nothing: an answer was lost or late.";
    CmRetry, "cm_retry", Note, "A connection message got no answer in time and was sent again.", "Packets are lost on the way, or the peer is slow to accept.";
    CmTimeout, "cm_timeout", Refusal, "A connection got no answer after all retries.", "Check the address, a firewall on UDP port 4791, and that the peer's daemon runs.";
    CmNoNextHop, "cm_no_next_hop", Refusal, "An address was not resolved, because its next hop (the peer, or the gateway to it) did not answer ARP or neighbour discovery.", "Check that the host is up and on this network, and that the address and the route to it are right: ip neigh, ip route get.";
    CmNobodyListens, "cm_nobody_listens", Refusal, "A request for an address and port on which nobody listens was rejected.", "Start the server first, and check its address and port.";
    CmEarly, "cm_early", Note, "A request for an address and port on which nobody listened yet was kept for a moment.", "Nothing: if nobody listens soon it is rejected, and counted as cm_nobody_listens.";
    CmRejected, "cm_rejected", Refusal, "The peer rejected a connection.", "Look at the reason in the event, and at the peer's program.";
    CmBacklogFull, "cm_backlog_full", Drop, "A request found the listener's backlog full; the peer will ask again.", "Accept faster, or listen with a larger backlog.";
    CmNoRoom, "cm_no_room", Drop, "There is no room for another connection in this worker.", "Close connections; the limit protects the host.";
    CmStale, "cm_stale", Refusal, "A request for a queue pair that is connected here already: the old connection was ended.", "Nothing: the peer restarted.";
    CmBadRequest, "cm_bad_request", Refusal, "A request asks for what is not supported: transport, partition, MTU or address header.", "Use RC, UC, UD or, where the listener does, XRC; the default partition and RDMA-CM addresses.";
    CmEventLost, "cm_event_lost", Drop, "An event channel is full and its program does not read it.", "Read events with rdma_get_cm_event.";
    // --- ports
    SendFailed, "send_failed", Drop, "The kernel refused to send a packet.", "Check that the interface is up and the peer has a route.";
    SendTooLong, "send_too_long", Drop, "A packet is longer than the path's MTU.", "Lower the path MTU or raise the interface's MTU on the whole path.";
    SendQueueFull, "send_queue_full", Drop, "The port's send queue was full.", "Nothing if rare; otherwise lower the load.";
    ReceiveOverflow, "receive_overflow", Drop, "A receive buffer overflowed: the socket's, or the daemon's own for packets within this host.", "Raise net.core.rmem_max (the socket's), or lower the window.";
    Impaired, "impaired", Drop, "The impairment wrapper dropped the packet on purpose.", "Nothing: it was asked for by an impair: option of the port.";
    BadIpHeader, "bad_ip_header", Drop, "An IP header is not of its version, has options, or its checksum is wrong.", "Look for a faulty link or a sender that is not RoCEv2.";
    BadUdpChecksum, "bad_udp_checksum", Drop, "A UDP checksum is wrong.", "Look for a faulty link or a middle box that rewrites packets.";
    Fragment, "ip_fragment", Drop, "An IP fragment: RoCEv2 packets are never fragmented.", "Lower the path MTU or raise the MTU on the whole path.";
    ForeignVlan, "foreign_vlan", Drop, "A frame with the tag of a VLAN that the port does not serve.", "Serve the VLAN's own interface, or take the tag off the switch port.";
    Oversize, "oversize", Drop, "A packet is longer than any RoCEv2 packet.", "The sender is not a RoCEv2 stack.";
    TrainUnknown, "train_unknown", Drop, "The kernel handed over several packets as one without saying how they are divided.", "Use Linux 6.2 or later, the udp port, or turn offloads off at the sender: ethtool -K IFACE tx-udp-segmentation off.";
    NoNeighbour, "no_neighbour", Drop, "The next hop does not answer address resolution.", "Check that the peer is up and on the same network, and the route to it.";
    NoRoute, "no_route", Drop, "No route leads to the destination by the port's interface.", "Check ip route; a port sends by its own interface only.";
    NotOurs, "not_ours", Drop, "A packet for an address or port that is not ours.", "Nothing.";
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {} {}", self.name(), self.explanation(), self.cure())
    }
}
