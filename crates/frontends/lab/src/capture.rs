//! Notes the packets of the hosts while traffic runs, and joins what was sent with what arrived.

use crate::host::LabHost;
use crate::packet::LabPacket;
use burst_base::Reason;
use burst_client::Daemon;
use burst_control::capture::{CAPTURE_MESSAGE_MAX, captured};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes of each packet that its name needs.
const SNAP: u16 = 128;
/// Packets of a host that are noted.
const PACKETS_MAX: usize = 8192;
/// After the traffic's end: a worker hands over what it has copied when it sleeps, so nothing in this time means that nothing
/// follows.
const QUIET_MS: i64 = 100;

/// What a host has seen: packets that it sent or received, and how many were not noted.
#[derive(Default)]
struct SeenPackets {
    sent: Vec<LabPacket>,
    received: Vec<LabPacket>,
    missed: u64,
}

/// A capture of all hosts that goes on until [`LabCapture::end`].
pub struct LabCapture {
    stop: Arc<AtomicBool>,
    readers: Vec<JoinHandle<SeenPackets>>,
}

impl LabCapture {
    /// Begins.
    ///
    /// # Errors
    /// A sentence.
    pub fn begin(hosts: &[LabHost]) -> Result<LabCapture, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let addresses: Vec<(IpAddr, String)> =
            hosts.iter().filter_map(|host| Some((host.address.parse().ok()?, host.letter.clone()))).collect();
        let mut readers = Vec::new();
        for host in hosts {
            let mut daemon = Daemon::connect(&host.socket).map_err(|e| e.to_string())?;
            let sockets = daemon.capture(0, SNAP).map_err(|e| e.to_string())?;
            let (stop, addresses) = (stop.clone(), addresses.clone());
            // The connection ends only with the reader: the capture ends with it.
            readers.push(std::thread::spawn(move || {
                let _open = daemon;
                read(&sockets, &addresses, &stop)
            }));
        }
        Ok(LabCapture { stop, readers })
    }

    /// Ends: the packets that were sent, by time, each with whether it arrived, and how many were not noted.
    pub fn end(self) -> (Vec<LabPacket>, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut sent, mut received, mut missed) = (Vec::new(), Vec::new(), 0);
        for reader in self.readers {
            let seen = reader.join().unwrap_or_default();
            sent = merged(sent, seen.sent);
            received = merged(received, seen.received);
            missed += seen.missed;
        }
        join(&mut sent, &received);
        (sent, missed)
    }
}

/// Two lists that are in order of time, as one.
fn merged(first: Vec<LabPacket>, second: Vec<LabPacket>) -> Vec<LabPacket> {
    let mut all = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    while let (Some(one), Some(other)) = (first.peek(), second.peek()) {
        let earlier = if one.at_ns <= other.at_ns { &mut first } else { &mut second };
        all.extend(earlier.next());
    }
    all.extend(first);
    all.extend(second);
    all
}

/// Reads until `stop` is set and nothing more comes.
fn read(sockets: &[OwnedFd], addresses: &[(IpAddr, String)], stop: &AtomicBool) -> SeenPackets {
    let mut seen = SeenPackets::default();
    let mut buffer = vec![0; CAPTURE_MESSAGE_MAX];
    let timeout = Timespec { tv_sec: 0, tv_nsec: QUIET_MS * 1_000_000 };
    loop {
        let stopped = stop.load(Ordering::Relaxed);
        let mut fds: Vec<PollFd<'_>> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) if stopped => return seen,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return seen,
        }
        for socket in sockets {
            match recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return seen,
                Ok((len, _)) => note(&mut seen, &buffer[..len], addresses),
                Err(_) => {}
            }
        }
    }
}

fn note(seen: &mut SeenPackets, message: &[u8], addresses: &[(IpAddr, String)]) {
    let Some((lost, packets)) = captured(message) else { return };
    seen.missed += lost;
    let letter = |ip: IpAddr| addresses.iter().find(|(known, _)| *known == ip).map(|(_, letter)| letter.as_str());
    // What the impairment of the way has taken away is captured at its end, too, and did not arrive.
    for captured in packets.into_iter().filter(|one| one.is_sent || one.reason != Some(Reason::Impaired)) {
        let (Some(from), Some(to)) = (letter(captured.src), letter(captured.dst)) else { continue };
        let Some(packet) = LabPacket::read(&captured, from, to) else { continue };
        let list = if captured.is_sent { &mut seen.sent } else { &mut seen.received };
        match list.len() < PACKETS_MAX {
            true => list.push(packet),
            false => seen.missed += 1,
        }
    }
}

/// Notes of each sent packet whether it arrived. Of one that was sent several times the last arrived that was sent before the
/// arrival.
fn join(sent: &mut [LabPacket], received: &[LabPacket]) {
    for arrival in received {
        let before = sent.iter().take_while(|one| one.at_ns <= arrival.at_ns).count();
        let same = sent[..before].iter().rposition(|one| !one.arrived && one.is_same(arrival));
        if let Some(at) = same {
            sent[at].arrived = true;
            sent[at].marked |= arrival.marked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PacketKind;

    fn packet(at_ns: u64, psn: u32) -> LabPacket {
        LabPacket {
            at_ns,
            from: "a".into(),
            to: "b".into(),
            qpn: 2,
            psn,
            bytes: 64,
            name: "SEND Only".into(),
            kind: PacketKind::Data,
            marked: false,
            arrived: false,
        }
    }

    #[test]
    fn lists_are_merged_by_time() {
        let all =
            merged(vec![packet(1, 1), packet(3, 3), packet(3, 4)], vec![packet(2, 2), packet(3, 5), packet(9, 6)]);
        assert_eq!(all.iter().map(|one| one.psn).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert!(merged(Vec::new(), Vec::new()).is_empty());
    }

    #[test]
    fn of_a_packet_that_was_sent_twice_the_first_was_lost() {
        let mut sent = [packet(10, 1), packet(20, 2), packet(30, 1)];
        join(&mut sent, &[packet(25, 2), packet(35, 1)]);
        assert_eq!(sent.map(|one| one.arrived), [false, true, true]);
        let mut sent = [packet(10, 1), packet(30, 1)];
        join(&mut sent, &[packet(15, 1)]);
        assert_eq!(sent.map(|one| one.arrived), [true, false]);
    }
}
