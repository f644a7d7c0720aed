//! The table of reasons: why a packet was dropped, a request refused, a completion failed, a call denied.
//!
//! Each row gives the enum variant, the stable name (metric label and `burst why` key), the class, and two
//! sentences: what happened, and what to do about it. Counters are indexed by [`Reason::index`].

/// Outcome for the packet, request or call that a reason explains.
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
    /// Counted for information; no error.
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
    UnknownOpcode, "unknown_opcode", Drop, "The BTH opcode is neither an RC, XRC, UC or UD opcode of IBA nor one of Burst's own.", "The sender uses a transport that Burst does not implement.";
    BadIcrc, "bad_icrc", Drop, "The invariant CRC does not match.", "The packet was corrupted, or a middle box rewrote fields that the ICRC covers.";
    BadPkey, "bad_pkey", Drop, "The packet's partition key is not the queue pair's.", "Use the default partition (P_Key index 0) on both ends.";
    UnknownQpn, "unknown_qpn", Drop, "No queue pair has the packet's destination number.", "The peer sends to a queue pair that was destroyed, or to the wrong host.";
    WrongTransport, "wrong_transport", Drop, "The opcode belongs to another service type than the queue pair.", "Create both queue pairs with the same type.";
    WrongState, "wrong_state", Drop, "The queue pair is not ready to receive.", "Move the queue pair to RTR before the peer sends.";
    WrongSource, "wrong_source", Drop, "A connected queue pair received a packet from an address that is not its peer's.", "Check the GID index used at both ends.";
    BadQkey, "bad_qkey", Drop, "The Q_Key of a datagram is not the receiving queue pair's.", "Use the same Q_Key on both ends.";
    BadPadding, "bad_padding", Drop, "The pad count exceeds the payload, or the length of the packet is not a multiple of four bytes.", "The sender is faulty.";
    TrailingBytes, "trailing_bytes", Drop, "Payload follows the headers of a packet whose opcode has no payload.", "The sender is faulty.";
    // --- responder
    DuplicateRequest, "duplicate_request", Note, "A request arrived again, and the response was sent again.", "Nothing: an ACK was lost or late.";
    DuplicateForgotten, "duplicate_forgotten", Drop, "A READ or atomic arrived again, and its result is no longer stored.", "Nothing if rare: the duplicate was delayed in the network.";
    SequenceGap, "sequence_gap", Nak, "A request packet before this one is missing.", "Packets are lost or reordered in the network: check the path and socket buffers.";
    GapRepeated, "gap_repeated", Drop, "A packet follows a gap for which a NAK was already sent.", "Nothing: the peer sends again from the gap on.";
    InvalidOpcodeSequence, "invalid_opcode_sequence", Nak, "A request's opcode may not follow the opcode before it.", "The sender is faulty.";
    InvalidLength, "invalid_length", Nak, "A packet's length does not fit its opcode, MTU or announced length.", "Both ends must use the same path MTU.";
    RemoteAccess, "remote_access", Nak, "The rkey, address range or access right does not allow the request.", "Check rkey, address and access flags of the memory region, and the QP's access flags.";
    InvalidRequest, "invalid_request", Nak, "The request is not allowed on this queue pair.", "Set qp_access_flags and max_dest_rd_atomic for what the peer does.";
    ReceiverNotReady, "receiver_not_ready", Nak, "No receive was posted.", "Post receives before the peer sends.";
    ReceiveTooShort, "receive_too_short", Nak, "A message is longer than the receive buffer.", "Post larger receive buffers.";
    ReceiveProtection, "receive_protection", Nak, "The lkey, range or access right of a receive is wrong.", "Check the lkey, the range and IBV_ACCESS_LOCAL_WRITE of the receive buffer.";
    MisalignedAtomic, "misaligned_atomic", Nak, "An atomic's address is not a multiple of 8.", "Align atomic targets to 8 bytes.";
    TooManyReads, "too_many_reads", Nak, "The peer has more READs and atomics outstanding than max_dest_rd_atomic.", "Set max_rd_atomic of the peer to at most max_dest_rd_atomic here.";
    UdNoReceive, "ud_no_receive", Drop, "A datagram found no posted receive.", "Post more receives.";
    UdReceiveTooShort, "ud_receive_too_short", Drop, "A datagram is longer than its receive buffer.", "Leave 40 bytes for the GRH before the data.";
    UcMessageBroken, "uc_message_broken", Drop, "A UC message lost a packet and was dropped.", "UC does not retransmit: use RC, or check the path for loss.";
    MulticastMissing, "multicast_unknown_group", Drop, "A multicast datagram arrived for a group to which no queue pair is attached.", "Attach a queue pair to the group.";
    // --- requester
    StaleAck, "stale_ack", Drop, "An ACK arrived for a request that was already completed.", "Nothing: the ACK is a duplicate or late.";
    UnexpectedResponse, "unexpected_response", Drop, "A response arrived that answers no outstanding request.", "Nothing if rare: the response is a late duplicate.";
    ImpliedNak, "implied_nak", Note, "An ACK for a later request shows that a READ or atomic response was lost.", "Nothing: the request is sent again.";
    SequenceNakReceived, "sequence_nak_received", Note, "The peer reported a missing packet; packets are sent again from there on.", "Packets are lost in the network: check the path and socket buffers.";
    RnrNakReceived, "rnr_nak_received", Note, "The peer had no receive posted; the request is sent again after the RNR delay.", "Post more receives at the peer.";
    AckTimeout, "ack_timeout", Note, "No ACK arrived in time; packets are sent again.", "Check that the peer is reachable on UDP port 4791.";
    RetryExhausted, "retry_exhausted", Completion, "The peer did not answer after all retries.", "Check the address, the MTU of the path, a firewall on UDP port 4791, and that the peer's queue pair is in RTR.";
    RnrRetryExhausted, "rnr_retry_exhausted", Completion, "The peer had no receive posted after all RNR retries.", "Post receives at the peer, or raise rnr_retry (7 = for ever).";
    RemoteAccessReported, "remote_access_reported", Completion, "The peer refused the memory access.", "Check rkey, address, length and the peer's access flags.";
    RemoteInvalidReported, "remote_invalid_reported", Completion, "The peer refused the request as invalid.", "Check message size against the peer's receives, and its qp_access_flags.";
    RemoteOperationReported, "remote_operation_reported", Completion, "The peer could not complete the operation.", "Look at the peer's log and completions.";
    BadResponse, "bad_response", Completion, "The peer's response does not match the request.", "The peer is faulty.";
    LocalProtection, "local_protection", Completion, "An SGE's lkey, range or access right is wrong.", "Check lkey, address, length, and IBV_ACCESS_LOCAL_WRITE for reads and atomics.";
    LocalLength, "local_length", Completion, "The message is longer than the service allows.", "RC carries up to 2^31 bytes, UD one path MTU.";
    WindowBind, "window_bind", Completion, "A request to bind a memory window or to invalidate a key is not allowed.", "The region needs IBV_ACCESS_MW_BIND and the window's protection domain; invalidate a window of type 2 before binding it again.";
    LocalOperation, "local_operation", Completion, "The work request is malformed.", "Check opcode, SGE count, inline length and queue pair type.";
    Flushed, "flushed", Completion, "The queue pair entered the error state before the request was executed.", "Look at the first error completion of this queue pair.";
    CqOverrun, "cq_overrun", Completion, "A completion queue was full: the completion was lost, and its queue pair entered the error state.", "Create the CQ with room for all outstanding requests.";
    HandoverFull, "handover_full", Drop, "A packet was for another worker's queue pair, and that worker's input queue was full.", "Use fewer workers, or spread load over more peers.";
    ProcessDied, "process_died", Note, "A process died with connected queue pairs; their peers receive a NAK.", "Find out why the process ended.";
    QueueCorrupt, "queue_corrupt", Completion, "The indices of a work queue in shared memory are out of range.", "The application overwrote its queues: look for stray writes.";
    // --- connection management
    MadMalformed, "mad_malformed", Drop, "A datagram for QP1 is not a management datagram of 256 bytes.", "The sender is faulty.";
    MadClass, "mad_unknown_class", Drop, "A management datagram has a class that Burst does not implement.", "Nothing: RoCE uses the class of connection management only.";
    MadVersion, "mad_unknown_version", Drop, "A management datagram has another class version than 2.", "Nothing: connection management uses class version 2.";
    MadUnknown, "mad_unknown_attribute", Drop, "A management datagram has an unknown method or attribute.", "Nothing: the sender uses an optional attribute.";
    MadQueueFull, "mad_queue_full", Drop, "The worker's queue of management datagrams was full.", "Nothing if rare: the sender retries.";
    HelloUnexpected, "hello_unexpected", Drop, "An answer to a hello arrived that this daemon has not asked for, or too late.", "If often, look for a host that forges its packets.";
    HelloWithheld, "hello_withheld", Drop, "A hello was not answered, because too many have come.", "Look for a host that sends many.";
    MadSource, "mad_source", Drop, "A management datagram for QP1 was sent by another queue pair than QP1.", "Look for a hostile program on the sender's host: connection managers send from QP1 only.";
    CmUnknownId, "cm_unknown_id", Drop, "A connection message has a communication id that does not exist.", "Nothing: the message was late, or the peer restarted.";
    CmForged, "cm_forged", Drop, "A connection message came from an address or queue pair that is not the peer's.", "Look for a misconfigured or hostile host.";
    CmUnexpected, "cm_unexpected", Drop, "A connection message is not allowed in the state of its connection.", "Nothing if rare: the message was late or a duplicate.";
    CmDuplicate, "cm_duplicate", Note, "A connection message arrived again, and the answer was sent again.", "Nothing: an answer was lost or late.";
    CmRetry, "cm_retry", Note, "A connection message got no answer in time and was sent again.", "Packets are lost in the network, or the peer's program accepts slowly.";
    CmTimeout, "cm_timeout", Refusal, "A connection got no answer after all retries.", "Check the address, a firewall on UDP port 4791, and that the peer's daemon runs.";
    CmNoNextHop, "cm_no_next_hop", Refusal, "An address was not resolved, because its next hop (the peer, or the gateway to it) did not answer ARP or neighbour discovery.", "Check that the host is up and on this network, and that the address and the route to it are correct: ip neigh, ip route get.";
    CmNobodyListens, "cm_nobody_listens", Refusal, "A connection request was rejected because no program listens on its address and port.", "Start the server first, and check its address and port.";
    CmEarly, "cm_early", Note, "A connection request was kept for 50 ms because no program listened on its address and port yet.", "Nothing: if no program listens in time, the request is rejected and counted as cm_nobody_listens.";
    CmRejected, "cm_rejected", Refusal, "The peer rejected a connection.", "Look at the reason in the event, and at the peer's program.";
    CmBacklogFull, "cm_backlog_full", Drop, "A connection request was dropped because the listener's backlog was full; the peer retries.", "Accept faster, or listen with a larger backlog.";
    CmNoRoom, "cm_no_room", Drop, "The worker has its maximum number of connections.", "Close connections; the limit protects the host.";
    CmStale, "cm_stale", Refusal, "A connection request came from a queue pair that is already connected here; the old connection was ended.", "Nothing: the peer restarted.";
    CmBadRequest, "cm_bad_request", Refusal, "A connection request has an unsupported transport, partition, MTU or address header.", "Use RC, UC or UD (or XRC if the listener does), the default partition, and RDMA-CM addresses.";
    UserShare, "user_share", Refusal, "A request was refused because the user's programs use as much of a resource as one user may.", "See burst ls --users; close what is not needed. The daemon's administrator can set user_share and user_reserve (docs/configuration.md).";
    DaemonFull, "daemon_full", Refusal, "A request was refused because the daemon has no more of a resource for any user.", "See burst ls --users for who uses it; raise the limit that the refusal names (LimitNOFILE=, LimitAS=, vm.max_map_count, memory), or add a device.";
    CmEventLost, "cm_event_lost", Drop, "An event was lost because its event channel is full: the program does not read it.", "Read events with rdma_get_cm_event.";
    // --- ports
    SendFailed, "send_failed", Drop, "The kernel refused to send a packet.", "Check that the interface is up and that a route leads to the peer.";
    SendTooLong, "send_too_long", Drop, "A packet is longer than the path's MTU.", "Lower the path MTU or raise the interface's MTU on the whole path.";
    SendQueueFull, "send_queue_full", Drop, "The port's send queue was full.", "Nothing if rare; otherwise reduce the load.";
    ReceiveOverflow, "receive_overflow", Drop, "A receive buffer overflowed: the socket's, or the daemon's own buffer for looped back packets.", "Raise net.core.rmem_max (for the socket's buffer), or lower the window.";
    Impaired, "impaired", Drop, "The impairment wrapper dropped the packet on purpose.", "Nothing: the port has an impair: option.";
    BadIpHeader, "bad_ip_header", Drop, "An IP header has the wrong version, options, or a wrong checksum.", "Look for a faulty link or a sender that is not RoCEv2.";
    BadUdpChecksum, "bad_udp_checksum", Drop, "A UDP checksum is wrong.", "Look for a faulty link or a middle box that rewrites packets.";
    Fragment, "ip_fragment", Drop, "An IP fragment arrived; RoCEv2 packets are never fragmented.", "Lower the path MTU or raise the MTU on the whole path.";
    ForeignVlan, "foreign_vlan", Drop, "A frame has the tag of a VLAN that the port does not serve.", "Serve the VLAN's own interface, or remove the tag at the switch port.";
    Oversize, "oversize", Drop, "A packet is longer than any RoCEv2 packet.", "The sender is not a RoCEv2 stack.";
    TrainUnknown, "train_unknown", Drop, "The kernel delivered several packets as one without the size of each.", "Use Linux 6.2 or later, or the udp port, or switch offloads off at the sender: ethtool -K IFACE tx-udp-segmentation off.";
    NoNeighbour, "no_neighbour", Drop, "The next hop does not answer ARP or neighbour discovery.", "Check that the peer is up and on the same network, and check the route to it.";
    NoRoute, "no_route", Drop, "No route to the destination leaves by the port's interface.", "Check ip route get; a port sends by its own interface only.";
    NotOurs, "not_ours", Drop, "A packet is for an address or UDP port that the port does not serve.", "Nothing.";
    // --- answers and senders that are limited
    CnpReceived, "cnp_received", Note, "A congestion notification packet arrived.", "The network marks packets as congested; the congestion controller reduces the window.";
    SourcePortChanged, "source_port_changed", Note, "A peer's packets come from another UDP source port than before.", "Nothing if rare: the peer or its network changed the path. If often, look for a host that forges the peer's address.";
    SourcePortShut, "source_port_shut", Drop, "A packet came from another UDP source port than the peer's, shortly after many such packets with PSNs far from the expected ones.", "Look for a host that forges the peer's address and tries PSNs.";
    AnswerWithheld, "answer_withheld", Drop, "A repeated or out-of-order request was not answered again, because the queue pair has sent too many such answers.", "Look for a host that repeats the peer's requests, or for a path that loses most packets.";
    CmAddressAsked, "cm_address_asked", Note, "A connection request waits until its sender has proved its address by an answer, because too many requests came from addresses that have proved nothing.", "If often, look for a host that sends connection requests with forged source addresses.";
    DaemonDied, "daemon_died", Completion, "The daemon fell before the request completed: the library ended the request, and whether the peer has executed it is unknown.", "Open the device again; `burst why daemon` shows why the daemon fell.";
    ThreadStalled, "thread_stalled", Note, "A control or worker thread of the daemon stood still for a second or longer.", "The daemon's log names the thread and where it is. Look for a machine that swaps or has too few processors; otherwise report it with the line of the log.";
    // --- memory that is reached in its process
    PageLate, "page_late", Note, "A page of a program's memory was not there in time; the packet is sent or asked for again.", "Nothing if rare: the page is read from a file. If often, register memory that is no mapped file, or touch it before.";
    PageRemoved, "page_removed", Completion, "A page of registered memory is missing: the program has removed it from its file, or no huge page is free; the daemon may not allocate it.", "Register memory that has been touched, and do not remove pages (MADV_REMOVE, FALLOC_FL_PUNCH_HOLE) while it is registered.";
    PageMissing, "page_missing", Completion, "A page of a program's memory has not come for a second.", "Look for the file system behind the registered memory: a FUSE or NFS server that does not answer.";
    // --- recovery from loss
    ReadRepaired, "read_repaired", Note, "READ responses were missing among others that arrived, and their range was requested again.", "Packets are lost in the network: check the path and socket buffers.";
    SrNotNegotiated, "sr_not_negotiated", Drop, "A packet of Burst's selective repeat family arrived, but this queue pair does not use selective repeat.", "If often, look for a peer that runs another version of Burst, or for a host that forges its packets.";
    SrVersion, "sr_version", Drop, "A selective repeat header has an unknown version, or a lane other than 0.", "Use the same version of Burst on both hosts.";
    SrFlags, "sr_flags", Drop, "A selective repeat header marks a packet as a probe or as the repair of a READ, and its opcode cannot be that.", "The sender is faulty.";
    SrIndex, "sr_index", Drop, "The packet index of a selective repeat header does not fit the opcode, or lies behind the longest message.", "The sender is faulty.";
    SrAddress, "sr_address", Drop, "A selective repeat WRITE packet ends behind the address space.", "The sender is faulty.";
    SrBitmap, "sr_bitmap", Drop, "The bitmap of a selective repeat acknowledgement is not as long as its header says.", "The sender is faulty.";
    SrSyndrome, "sr_syndrome", Drop, "A selective repeat acknowledgement has a syndrome that its family does not use.", "The sender is faulty.";
    NakRepeated, "nak_repeated", Drop, "A sequence NAK arrived again for a packet that has been sent again already.", "Nothing: the peer reports a gap more than once.";
    SrWindow, "sr_window", Drop, "A selective repeat packet is further ahead of the first missing one than this side keeps track of.", "Nothing if rare; if often, the peer ignores the window that the hello gives.";
    SrPoolEmpty, "sr_pool_empty", Drop, "A packet behind a gap was dropped because all records of packets received early are in use.", "Too many connections lose packets at once: look for the loss.";
    SrRecordFull, "sr_record_full", Drop, "A packet behind a gap was dropped because the record of its queue pair is full.", "Nothing if rare: the peer sends it again.";
    SrUnplaced, "sr_unplaced", Drop, "A packet behind a gap could not be placed: no receive is posted for it, or key or range do not allow it. It is judged when its turn comes.", "Post more receives if the messages are SENDs.";
    SrEarly, "sr_early", Note, "A packet was placed before the packets in front of it had arrived.", "Packets are lost or reordered in the network.";
    SrRecovery, "sr_recovery", Note, "An acknowledgement showed gaps, and the missing packets are sent again.", "Packets are lost or reordered in the network: check the path and socket buffers.";
    SrRepeated, "sr_repeated", Note, "A packet was sent again because it was lost.", "Packets are lost in the network: check the path and socket buffers.";
    SrProbe, "sr_probe", Note, "The last packet was sent again to provoke an acknowledgement.", "The last packets of a message, or their acknowledgement, were lost.";
    SrTimeout, "sr_timeout", Note, "No acknowledgement came in time, and all unacknowledged packets are sent again.", "The path loses many packets, or the peer does not run.";
    SrReordered, "sr_reordered", Note, "A packet that was sent again had arrived: the path reorders packets, and the next gaps are waited for.", "Nothing; if often, look for a network that spreads one flow over several paths.";
    SrRefused, "sr_refused", Note, "The peer does not answer selective repeat packets, and the standard packets are used.", "Use the same version of Burst on both hosts, or look for a firewall that drops BTH opcodes from 0xC0 on.";
    // --- the daemon's own memory
    NoMemory, "no_memory", Nak, "The system gave the daemon no memory for a peer's request; an RNR NAK asks for it again.", "Give the daemon or the machine more memory, or let the peer have fewer requests outstanding (max_rd_atomic).";
    // --- acknowledgements of READ responses
    SrReadTimeout, "sr_read_timeout", Note, "No acknowledgement of READ responses came in time; they do not count as in flight any more.", "Packets are lost in the network, or the peer does not run.";
    // --- the Unified Bus transport: packets
    UbVersion, "ub_version", Drop, "A Unified Bus packet has a transport version other than 0.", "Use the same version of Burst on both hosts.";
    UbNextLayer, "ub_next_layer", Drop, "A Unified Bus header announces a next header that Burst does not implement.", "The sender uses security or entity headers, or is no Unified Bus stack.";
    UbTransportOpcode, "ub_transport_opcode", Drop, "A Unified Bus packet has an unknown transport opcode.", "The sender uses a transport type that Burst does not implement.";
    UbTransactionOpcode, "ub_transaction_opcode", Drop, "A Unified Bus packet has an unknown transaction opcode.", "The sender uses a transaction that Burst does not implement.";
    UbLength, "ub_length", Drop, "The payload of a Unified Bus packet does not fit the length and offset in its headers.", "The sender is faulty.";
    UbChecksum, "ub_checksum", Drop, "The checksum of a Unified Bus packet does not match.", "The packet was corrupted on the path.";
    UbSackSize, "ub_sack_size", Drop, "A selective acknowledgement has an unknown bitmap size.", "The sender is faulty.";
    UbForeign, "ub_foreign", Drop, "A Unified Bus packet is for another network address.", "Nothing if rare: the peer has an old address of this host.";
    UbManagement, "ub_management", Drop, "A management message of the Unified Bus transport is malformed.", "Use the same version of Burst on both hosts.";
    // --- the Unified Bus transport: channels
    UbUnknownChannel, "ub_unknown_channel", Drop, "A packet names a transport channel that does not exist, or is not the peer's.", "Nothing if rare: the packet is late. If often, look for a host that forges its packets.";
    UbStaleChannel, "ub_stale_channel", Drop, "A message to open a transport channel does not belong to the present one; its sender is asked to show that it is not late.", "Nothing: the peer has restarted, or the packet is late.";
    UbChannelLimit, "ub_channel_limit", Drop, "A transport channel was not opened because the host has its maximum number of channels.", "Raise the limit on channels, or look for a host that opens channels with forged addresses.";
    UbDuplicate, "ub_duplicate", Note, "A packet of a transport channel arrived again and was not executed again.", "Nothing: an acknowledgement was lost or late.";
    UbOutsideWindow, "ub_outside_window", Drop, "A packet's PSN is outside the receive window of its channel.", "Nothing if rare; if often, the peer ignores the window.";
    UbGap, "ub_gap", Note, "A packet before this one is missing on its channel.", "Packets are lost or reordered in the network.";
    UbRepeated, "ub_repeated", Note, "A packet of a transport channel was sent again.", "Packets are lost in the network: check the path and socket buffers.";
    UbTimeout, "ub_timeout", Note, "No acknowledgement came on a transport channel in time.", "Packets are lost in the network, or the peer does not run.";
    UbChannelFailed, "ub_channel_failed", Completion, "A transport channel got no acknowledgement after all retries.", "Check that the peer is reachable and that its daemon runs.";
    UbPoolFull, "ub_pool_full", Drop, "A packet that must wait for others was dropped because the reorder buffer is full; it is sent again.", "Nothing if rare; if often, the path loses many packets.";
    UbBadAck, "ub_bad_ack", Drop, "An acknowledgement is for packets that were never sent.", "The sender is faulty or forges its packets.";
    // --- the Unified Bus transport: transactions
    UbUnknownTarget, "ub_unknown_target", Nak, "A request names a Jetty or JFR that does not exist or is not ready.", "The peer uses an id of an object that was deleted, or the wrong host.";
    UbToken, "ub_token", Nak, "A request carries a wrong token, or none where one is needed.", "Import the Jetty or segment with the token of its owner.";
    UbRange, "ub_range", Nak, "A request reaches outside of its segment.", "Check address and length against the imported segment.";
    UbAccess, "ub_access", Nak, "A request needs a right that its segment does not give.", "Register the segment with the access flags that the peer needs.";
    UbRefused, "ub_refused", Nak, "A request is not allowed: the Jetty is bound to another one, or length or operation do not fit.", "Check the bound Jetty, the length and the opcode of the request.";
    UbTooLong, "ub_too_long", Nak, "A message is longer than the receive buffer.", "Post larger receive buffers.";
    UbNotReady, "ub_not_ready", Nak, "A message found no posted receive; the peer is asked to send it again.", "Post receives before the peer sends.";
    UbOrderBufferFull, "ub_order_buffer_full", Nak, "An ordered request must wait for earlier ones and the order buffer is full; the peer is asked to send it again.", "Nothing if rare; if often, the path loses many packets.";
    UbPoisoned, "ub_poisoned", Nak, "A packet is marked as poisoned: its sender could not read the data.", "The peer deregistered a segment that is in use.";
    UbLate, "ub_late", Drop, "A response answers no outstanding request.", "Nothing: the response is late.";
    UbUnreliableLost, "ub_unreliable_lost", Drop, "An unreliable message was dropped: no receive is posted, its target does not exist, or a check failed.", "Post more receives; check ids, tokens and ranges.";
    UbContextDenied, "ub_context_denied", Note, "A peer's request for a sequence context was denied because all are in use; the peer keeps the order itself.", "Nothing: ordered requests take one round trip more.";
    UbReplay, "ub_replay", Note, "A repeated load, store or atomic without channel was answered from the replay cache.", "Nothing: an answer was lost or late.";
    // --- connections that burst proxy did not carry over RDMA
    ProxyPolicyTcp, "proxy_policy_tcp", Note, "The proxy relays a connection by TCP, because its policy says relay = tcp.", "Nothing; remove relay from the rule to use RDMA.";
    ProxyNoPeer, "proxy_no_peer", Note, "The proxy relays a connection by TCP, because no peer serves its address.", "Name the address in a [[serve]] of the peer, and see burst proxy ls.";
    ProxyPeerGone, "proxy_peer_gone", Note, "The proxy relays a connection by TCP, because its peer went away before the server had answered.", "See the log of the peer's proxy.";
    ProxyNoLink, "proxy_no_link", Note, "The proxy relays a connection by TCP, because no link to the peer works at the moment.", "See burst proxy ls; the control channel carries a link that has no queue pair.";
    ProxyPeerSilent, "proxy_peer_silent", Note, "The proxy relays a connection by TCP, because the peer did not answer in time (open_ms).", "The peer's host or the server is overloaded or far away: raise open_ms.";
    ProxyNotServed, "proxy_not_served", Note, "The peer's proxy could not connect to the server from the client's address.", "Name the address in a [[serve]] of the peer, and see the peer's log.";
    ProxyNoMemory, "proxy_no_memory", Note, "The proxy or its peer has no memory for another stream.", "Raise memory, or lower window, in the configuration.";
    ProxyDraining, "proxy_draining", Note, "The proxy or its peer takes no new streams, because it was asked to drain.", "Nothing: it will be started again.";
    ProxyRefused, "proxy_refused", Note, "The server refused a connection; the client's connection was reset.", "Start the server, or look for a wrong port.";
    ProxyUnreachable, "proxy_unreachable", Note, "The server did not answer the peer's connect; the client's connection was reset.", "Look for a firewall on the server's host.";
    ProxyReset, "proxy_reset", Note, "A connection was reset before the server had answered.", "Nothing: the program gave up.";
    // --- going back
    BackRepeated, "back_repeated", Note, "A packet that was sent again after a sequence NAK was not acknowledged within two round trips, and is sent once more.", "The path loses many packets: check it, and the peer's socket buffers.";
    TailProbe, "tail_probe", Note, "The last packet was sent again because the peer had said nothing for two round trips (standard packets).", "The last packets of a message, or their acknowledgement, were lost, or the peer did not run.";
    // --- the end of a peer's node on the Unified Bus
    UbPeerRestarted, "ub_peer_restarted", Note, "The peer of a transport channel has restarted: requests of which packets were sent have ended, others go on on a new channel.", "Nothing, if the peer's program or daemon was started again; import its Jetties and segments again.";
    UbChannelEnded, "ub_channel_ended", Note, "The peer has closed a transport channel: its program or daemon has ended, or a lane of it has failed.", "Nothing, if the peer's program has ended.";
    // --- lent worker numbers
    ForeignWorker, "foreign_worker", Drop, "A packet for a queue pair of another process arrived at an engine with a lent worker number.", "Nothing if rare: trains of packets were joined on the way, and the sender repeats; if often, use a daemon's programs for this peer.";
    // --- the Unified Bus transport: the echo
    UbEcho, "ub_echo", Note, "A message to Jetty 5, the echo of every host, was sent back: somebody pings.", "Nothing; if very many, look for a host that floods this one.";
    UbEchoBusy, "ub_echo_busy", Nak, "A message to the echo found no room: as many as it keeps, or half of what is left for one peer, are on their way back; the sender is asked to send it again.", "Nothing; if often, look for a host that floods this one.";
    UbEchoLost, "ub_echo_lost", Drop, "The requester did not take its message back from the echo: it has no receive posted, its Jetty is gone or needs a token, or the receive is too short.", "Post receives before pinging.";
    // --- the daemon's reserve of memory
    MemoryReserve, "memory_reserve", Refusal, "A request was refused because the system gave the daemon no more memory or address space, and the daemon uses its reserve.", "End programs or give the machine memory (vm.overcommit_*, LimitAS=, memory.max). Requests of root and of the daemon's user are not refused for this.";
    // --- the Unified Bus transport: requests without channel, guessed tokens
    UbNoChannel, "ub_no_channel", Nak, "A request without channel (mode UM, a load, a store or an atomic) reaches for a segment without token.", "Register the segment with a token (policy PLAIN_TEXT), or use mode RM or RC; if it was not you, look for a host that forges its packets.";
    UbGuesses, "ub_guesses", Nak, "A request was refused whatever its token is, because its Jetty has shown too many wrong tokens lately, or its host has for the same object.", "Import the Jetty or segment again with the token of its owner and wait a second; if often, look for a program that tries tokens.";
    // --- receipts of UC
    UcReceiptTimeout, "uc_receipt_timeout", Note, "A UC queue pair sends to a Burst peer that does not answer: no receipt of its packets came in time, so they do not count as in flight any more, and it sends 8 KiB at a time until one comes.", "Look at the peer: its queue pair is gone (`unknown_qpn` in its statistics), its daemon does not run, or packets are lost on the way; end the sender if its receiver has ended.";
    // --- connections that burst proxy refused
    ProxyEncryptOnly, "proxy_encrypt_only", Refusal, "The proxy refused a connection that could go by TCP only, in clear (encrypt = only).", "The reason beside it says why no peer could carry the connection; encrypt = on lets such connections go by TCP.";
    // --- what other hosts say of packets
    PeerPortClosed, "peer_port_closed", Drop, "A host answered that nothing listens on the UDP port to which packets were sent (ICMP port unreachable).", "Start burstd, or another RDMA stack, at the peer, and check the peer's address.";
    // --- connection requests and shares of users
    CmUserShare, "cm_user_share", Refusal, "A connection request was rejected because the listener's user has its share of communication ids or of queued requests.", "Accept or reject requests faster, or end connections: burst ls --users shows cm_ids and cm_requests.";
    // --- shares of a proxy's users
    ProxyUserShare, "proxy_user_share", Refusal, "The connections of a user through the proxy have all sockets, or all memory, that they may have; with no memory left this one went by TCP.", "Close connections, raise user_share or LimitNOFILE=, or give the proxy more memory.";
    // --- connections that burst proxy carried and that ended in error
    ProxyProgramReset, "proxy_program_reset", Note, "The program at this host's end reset a connection: it ended or closed its socket without reading all that had come (or with SO_LINGER 0), or wrote after the other end was closed.", "Look in that program's log. The proxy passed the reset on to the other end, as TCP does.";
    ProxyPeerReset, "proxy_peer_reset", Note, "The program at the peer's end reset a connection: it ended or closed its socket without reading all that had come (or with SO_LINGER 0), or its connection to the proxy there failed.", "Look in that program's log, and ask burst proxy why on the peer's host.";
    ProxySocketFailed, "proxy_socket_failed", Note, "The kernel ended a program's connection with the proxy of its host, for want of something or because a keepalive had no answer.", "Look at the error beside it: descriptors (ulimit -n), memory, or a program that was stopped or cut off from its proxy.";
    ProxyPeerLost, "proxy_peer_lost", Note, "A connection was reset at both ends because the other proxy was given up: its process or host has ended, it was away for longer than resume_s, it broke the protocol, or the policy no longer names it.", "Start the other proxy and see its log; use burst proxy drain before a restart, and raise resume_s for a network that is away for longer.";
    ProxyTcpFailed, "proxy_tcp_failed", Note, "A connection that the proxy relayed by TCP failed: one of its two TCP connections could not be made or was reset.", "Look at the error beside it, and at the server; the reason why no peer carried the connection is named, too.";
    // --- bytes that an engine copies
    CopyFailed, "gpu_copy_failed", Completion, "A copy to or from the memory of a program's GPU has failed: the memory was freed while it was registered, or its context has ended. All GPU memory that the context had registered is lost.", "Deregister memory before it is freed; open the device again (docs/gpu.md).";
    CopyPending, "copy_pending", Nak, "A request that must see earlier bytes came while these were still being copied; an RNR NAK asks for it again.", "Nothing: the peer sends it again.";
    CopyQueueFull, "copy_queue_full", Drop, "A packet was dropped because the copies that a queue pair has begun, or what waits for them, are too many.", "Nothing if rare: the peer sends it again.";
}

impl Reason {
    /// Whether the program's key and range are right, but its memory is not there.
    pub const fn is_of_memory(self) -> bool {
        matches!(self, Reason::PageMissing | Reason::PageRemoved)
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {} {}", self.name(), self.explanation(), self.cure())
    }
}
