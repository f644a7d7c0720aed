//! Which packets of a capture are shown: by queue pair, peer, opcode and stage.
//!
//! Several values of one kind are alternatives; all kinds that are given must agree, but queue pairs and Jetties are
//! alternatives, because no packet has both. A packet that was sent belongs to the queue pair or Jetty that sent it, one that
//! was received to the one that it names.

use super::lines::{opcode_of, whole};
use burst_base::reason::Class;
use burst_control::capture::CapturedPacket;
use burst_ubwire::{Dialect, TaOpcode, UB_UDP_PORT, UbPacket};
use burst_wire::{Bth, Opcode, ROCE_PORT};
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use std::net::IpAddr;

/// What has become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketStage {
    /// Given to the port.
    Sent,
    /// Received, and neither dropped nor refused.
    Received,
    /// Received and dropped.
    Dropped,
    /// Received and answered by a NAK.
    Refused,
}

impl PacketStage {
    /// That of a packet.
    pub fn of(packet: &CapturedPacket<'_>) -> PacketStage {
        match packet.reason.map(|reason| reason.class()) {
            _ if packet.is_sent => PacketStage::Sent,
            Some(Class::Drop) => PacketStage::Dropped,
            Some(Class::Nak) => PacketStage::Refused,
            _ => PacketStage::Received,
        }
    }
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            PacketStage::Sent => "sent",
            PacketStage::Received => "received",
            PacketStage::Dropped => "dropped",
            PacketStage::Refused => "refused",
        }
    }
    const ALL: [PacketStage; 4] =
        [PacketStage::Sent, PacketStage::Received, PacketStage::Dropped, PacketStage::Refused];
}

/// The chosen packets; all, if nothing is chosen.
#[derive(Clone, Debug, Default)]
pub struct PacketFilter {
    qpns: Vec<u32>,
    jetties: Vec<u32>,
    peers: Vec<IpAddr>,
    /// Parts of names of opcodes, in small letters.
    opcodes: Vec<String>,
    stages: Vec<PacketStage>,
}

/// The flags of a filter.
pub fn args() -> [Arg; 5] {
    let several = |name: &'static str, value: &'static str| {
        Arg::new(name).long(name).value_name(value).action(ArgAction::Append).value_delimiter(',')
    };
    [
        several("qp", "QPN")
            .value_parser(qpn)
            .help("Only packets of this queue pair of the host (0x11f or 287); several: with commas, or given again"),
        several("jetty", "ID")
            .value_parser(value_parser!(u32))
            .help("Only packets of this Jetty of the host: its requests and their responses, and what is sent to it"),
        several("peer", "ADDRESS").value_parser(peer).help("Only packets from or to this address"),
        several("opcode", "WORD").value_parser(opcode).help(
            "Only packets whose opcode has this in its name: send, `rdma write`, `read response`, acknowledge, cnp",
        ),
        several("stage", "STAGE")
            .value_parser(stage)
            .help("Only packets that were sent, received, dropped, or refused with a NAK"),
    ]
}

fn qpn(text: &str) -> Result<u32, &'static str> {
    let number = text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
    number.filter(|qpn| *qpn < 1 << 24).ok_or("a queue pair number is below 0x1000000: write 0x11f or 287")
}

fn peer(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "write an IPv4 or IPv6 address of the peer")
}

fn opcode(text: &str) -> Result<String, String> {
    let word = text.trim().to_ascii_lowercase();
    let names = || {
        let roce = Opcode::ALL.iter().map(|opcode| opcode.name().to_ascii_lowercase());
        let urma = TaOpcode::ALL.iter().map(|opcode| format!("{opcode:?}").to_ascii_lowercase());
        roce.chain(urma).chain(["tpack".to_owned()])
    };
    if !word.is_empty() && names().any(|name| name.contains(&word)) {
        return Ok(word);
    }
    let names: Vec<String> = names().collect();
    let nearest = burst_grammar::nearest(&word, names.iter().map(String::as_str)).unwrap_or("send");
    Err(format!("no opcode has this in its name; the nearest is `{nearest}`"))
}

fn stage(text: &str) -> Result<PacketStage, &'static str> {
    let found = PacketStage::ALL.into_iter().find(|stage| stage.name() == text);
    found.ok_or("write sent, received, dropped or refused")
}

impl PacketFilter {
    /// What the flags say.
    pub fn from_matches(matches: &ArgMatches) -> PacketFilter {
        fn all<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> Vec<T> {
            matches.get_many::<T>(name).into_iter().flatten().cloned().collect()
        }
        PacketFilter {
            qpns: all(matches, "qp"),
            jetties: all(matches, "jetty"),
            peers: all(matches, "peer"),
            opcodes: all(matches, "opcode"),
            stages: all(matches, "stage"),
        }
    }

    /// Whether a packet is chosen.
    pub fn takes(&self, packet: &CapturedPacket<'_>) -> bool {
        (self.stages.is_empty() || self.stages.contains(&PacketStage::of(packet)))
            && (self.peers.is_empty() || self.peers.contains(&if packet.is_sent { packet.dst } else { packet.src }))
            && (self.qpns.is_empty() && self.jetties.is_empty()
                || qpn_of(packet).is_some_and(|qpn| self.qpns.contains(&qpn))
                || jetty_of(packet).is_some_and(|jetty| self.jetties.contains(&jetty)))
            && (self.opcodes.is_empty() || self.has_opcode(packet))
    }

    fn has_opcode(&self, packet: &CapturedPacket<'_>) -> bool {
        if ![ROCE_PORT, UB_UDP_PORT].contains(&packet.dst_port) {
            return false;
        }
        let name = opcode_of(packet, &whole(packet)).to_ascii_lowercase();
        self.opcodes.iter().any(|word| name.contains(word))
    }
}

/// The queue pair of this host that a packet belongs to.
fn qpn_of(packet: &CapturedPacket<'_>) -> Option<u32> {
    if packet.is_sent {
        return (packet.sender != 0).then_some(packet.sender);
    }
    let bth = Bth::parse(packet.bytes).ok().filter(|_| packet.dst_port == ROCE_PORT)?;
    Some(bth.dest_qpn.get())
}

/// The Jetty of this host that a packet belongs to.
fn jetty_of(packet: &CapturedPacket<'_>) -> Option<u32> {
    if packet.dst_port != UB_UDP_PORT {
        return None;
    }
    UbPacket::parse(&whole(packet), &Dialect::BURST).ok()?.own_jetty(packet.is_sent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::lines::tests::packet;
    use burst_base::Reason;

    fn filter(words: &[&str]) -> Result<PacketFilter, String> {
        let command = clap::Command::new("x").args(args());
        let line = ["x"].iter().chain(words);
        let matches = command.try_get_matches_from(line).map_err(|error| error.to_string())?;
        Ok(PacketFilter::from_matches(&matches))
    }

    #[test]
    fn each_kind_chooses_and_all_kinds_must_agree() {
        let ack = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0, 0, 0, 7, 0x1f, 0, 0, 1];
        let received = packet(&ack, 20, ROCE_PORT);
        let sent = CapturedPacket { is_sent: true, sender: 9, ..received };
        let dropped = CapturedPacket { reason: Some(Reason::StaleAck), ..received };
        let refused = CapturedPacket { reason: Some(Reason::RemoteAccess), ..received };
        for (words, taken) in [
            (&[][..], [true, true, true, true]),
            (&["--qp", "5"], [true, false, true, true]),
            (&["--qp", "0x9,6"], [false, true, false, false]),
            (&["--peer", "10.0.0.1"], [true, false, true, true]),
            (&["--peer", "10.0.0.2"], [false, true, false, false]),
            (&["--opcode", "Acknowledge"], [true, true, true, true]),
            (&["--opcode", "send", "--opcode", "cnp"], [false, false, false, false]),
            (&["--stage", "dropped,refused"], [false, false, true, true]),
            (&["--stage", "received"], [true, false, false, false]),
            (&["--stage", "sent", "--qp", "5"], [false, false, false, false]),
        ] {
            let filter = filter(words).expect("a filter");
            assert_eq!([received, sent, dropped, refused].map(|p| filter.takes(&p)), taken, "{words:?}");
        }
        let short = CapturedPacket { bytes: &ack[..3], ..received };
        assert!(!filter(&["--qp", "5"]).expect("a filter").takes(&short), "no number is known");
    }

    #[test]
    fn packets_of_the_unified_bus_have_opcodes_and_no_queue_pair() {
        // A classic capture file: a head of 24 bytes, records with heads of 16, packets from the IP header on.
        let mut rest = &include_bytes!("../../../../bytes/ubwire/tests/vectors/unified-bus.pcap")[24..];
        let (mut counts, mut all) = ([0; 4], 0);
        while let Some(len) = rest.get(8..12) {
            let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
            let frame = &rest[16..16 + len];
            let bytes = &frame[if frame[0] >> 4 == 4 { 28 } else { 48 }..len - 4];
            let packet = packet(bytes, bytes.len() as u16 + 4, UB_UDP_PORT);
            for (count, words) in
                counts.iter_mut().zip([["--opcode", "read"], ["--opcode", "tpack"], ["--opcode", "rc"], ["--qp", "5"]])
            {
                *count += u32::from(filter(&words).expect("a filter").takes(&packet));
            }
            (rest, all) = (&rest[16 + len..], all + 1);
        }
        let [reads, acks, roce, of_qp] = counts;
        assert!(reads > 0 && acks > 0 && reads + acks < all, "{counts:?} of {all}");
        assert_eq!((roce, of_qp), (0, 0));
    }

    #[test]
    fn wrong_words_are_answered_with_what_to_write() {
        for (words, sentence) in [
            (["--qp", "0x1000000"], "below 0x1000000"),
            (["--qp", "x"], "write 0x11f"),
            (["--peer", "host"], "IPv4 or IPv6"),
            (["--opcode", "acknowlege"], "nearest is `rc acknowledge`"),
            (["--stage", "lost"], "dropped or refused"),
        ] {
            let refused = filter(&words).expect_err("refused");
            assert!(refused.contains(sentence), "{words:?}: {refused}");
        }
    }
}
