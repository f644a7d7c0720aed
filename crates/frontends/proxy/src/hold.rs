//! SYNs of intercepted connections, held until the server's answer is known: NFQUEUE.
//!
//! The kernel would answer a program's SYN as soon as it reaches the proxy's listener, before the
//! server has been asked. So a rule of nf_tables gives marked SYNs to a queue of the worker that will accept the connection
//! ([`SynQueue`]). When the peer has connected to the server, the SYN goes on to the listener. If the server refuses,
//! the SYN gets another mark, by which a second rule answers it with a reset: `connect` fails with ECONNREFUSED. If the
//! server does not answer, the SYN is dropped, and the program's TCP repeats it or gives up; if a router or the server's host has
//! said that it cannot be reached, the program is notified ([`crate::unreachable`]).
//!
//! The table belongs to a netlink socket (`NFT_TABLE_F_OWNER`, Linux 5.12): the kernel removes it with the process.
//! Without a reader, or with a full queue, SYNs pass at once. Kernels without the expression `queue` have perhaps the
//! target NFQUEUE of xtables, which nf_tables can use as well.

use crate::netlink::{self, Attributes, NetfilterRequest, Netlink};
use crate::nft::{self, HeaderBase, TableBatch};
use crate::sys::field;
use crate::unreachable::UnreachableSender;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Most SYNs that a queue holds; more pass at once.
const HELD_MAX: u32 = 8192;
/// First queue; each mark has [`crate::config::WORKERS_MAX`] of them.
const FIRST_QUEUE: u32 = 0xb000;
/// Bytes of a SYN that are copied: the headers up to the ports, behind any options of IPv4.
const COPIED: u32 = 64;

const _: () = assert!(FIRST_QUEUE + 253 * crate::config::WORKERS_MAX < 0x1_0000);

/// The mark of a SYN that is answered with a reset.
pub fn refused_mark(mark: u32) -> u32 {
    mark + (1 << 17)
}

/// Source ports are dealt to the workers by their low bits: as many as make up a power of two that is not less than the
/// number of workers (as in `csrc/steer.bpf.c`).
pub fn port_classes(workers: u32) -> u32 {
    workers.next_power_of_two()
}

fn queue_number(mark: u32, worker: u32) -> u16 {
    (FIRST_QUEUE + mark * crate::config::WORKERS_MAX + worker) as u16
}

/// The rules of one namespace. They go when this is dropped, and when the process ends.
#[derive(Debug)]
pub struct SynRules {
    _owner: Netlink,
}

/// The rules and the workers' queues in the calling thread's namespace.
///
/// # Errors
/// One sentence: what the kernel lacks.
pub fn hold(mark: u32, workers: u32) -> std::result::Result<(SynRules, Vec<SynQueue>), String> {
    let failed = |what: &'static str| move |e: Error| format!("{what}: {e}");
    let silent = |e| crate::log(format_args!("a server that cannot be reached is silent: {e} (CAP_NET_RAW is needed)"));
    let unreachable = UnreachableSender::open().map_err(silent).ok().map(Arc::new);
    let queues = (0..workers).map(|worker| SynQueue::open(queue_number(mark, worker), unreachable.clone()));
    let queues: Vec<_> = queues.collect::<Result<_>>().map_err(failed("a queue for SYNs (NFQUEUE)"))?;
    let mut last = None;
    for native in [true, false] {
        let owner = Netlink::open().map_err(failed("netlink"))?;
        match set_rules(&owner, mark, workers, native) {
            Ok(()) => return Ok((SynRules { _owner: owner }, queues)),
            Err(e) => last = Some(e),
        }
    }
    let why = last.map_or_else(String::new, |e| e.to_string());
    Err(format!("nf_tables has neither the expression queue nor the target NFQUEUE: {why}"))
}

/// The number of `reject` for a reset.
const REJECT_TCP_RST: u32 = 1;

/// Makes table, chains and rules for IPv4 and, where the kernel has it, IPv6. All or nothing.
fn set_rules(owner: &Netlink, mark: u32, workers: u32, native: bool) -> Result<()> {
    let table = format!("burst-proxy-{mark}");
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut made = TableBatch::new(owner, family, &table);
        made.make_table();
        for (chain, priority) in ["hold", "refuse"].into_iter().zip(nft::MANGLE..) {
            made.base_chain(chain, "filter", nft::LOCAL_IN, priority);
        }
        let classes = port_classes(workers);
        for class in 0..classes {
            let queue = queue_number(mark, class % workers);
            made.rule("hold", when_syn(mark).with(nft::when_port(classes, class)).with(to_queue(queue, native)));
        }
        let reset = nft::expression("reject", Attributes::new().be32(1, REJECT_TCP_RST).byte(2, 0));
        made.rule("refuse", when_syn(refused_mark(mark)).with(reset));
        match made.commit(owner) {
            Err(_) if family == libc::AF_INET6 && !has_ipv6() => {}
            other => other?,
        }
    }
    Ok(())
}

/// Whether the calling thread's namespace has IPv6.
pub fn has_ipv6() -> bool {
    std::path::Path::new("/proc/net/if_inet6").exists()
}

/// A SYN with the mark, and no other flag of FIN, SYN, RST and ACK.
fn when_syn(mark: u32) -> Attributes {
    let flags = nft::load_payload(nft::REG_1, HeaderBase::Transport, 13, 1);
    nft::when_mark(mark).with(nft::when_tcp()).with(flags).with(nft::masked(&[0x17])).with(nft::equal(&[0x02]))
}

/// Gives the packet to a queue; without a reader it passes.
fn to_queue(queue: u16, native: bool) -> Attributes {
    if native {
        return nft::expression("queue", Attributes::new().be16(1, queue).be16(2, 1).be16(3, 1));
    }
    // struct xt_NFQ_info_v3: number, how many, flags; padded to eight bytes.
    let info: Vec<u8> = [queue, 1, 1, 0].into_iter().flat_map(u16::to_ne_bytes).collect();
    nft::expression("target", Attributes::new().text(1, "NFQUEUE").be32(2, 3).bytes(3, &info))
}

mod nfqnl {
    pub const SUBSYSTEM: u16 = 3;
    pub const PACKET: u16 = 0;
    pub const VERDICT: u16 = 1;
    pub const CONFIG: u16 = 2;
    pub const COPY_PACKET: u8 = 2;
    pub const FAIL_OPEN: u32 = 1;
    pub const DROP: u32 = 0;
    pub const ACCEPT: u32 = 1;
}

/// What becomes of a held SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on to the listener.
    Pass,
    /// It is answered with a reset.
    Refuse,
    /// It is gone, and the program's TCP is notified that the server cannot be reached.
    Unreachable,
    /// It is gone.
    Drop,
}

/// A SYN that the kernel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The kernel's number.
    pub packet: u32,
    /// The program's address.
    pub client: SocketAddr,
    /// The server's.
    pub server: SocketAddr,
    /// Its sequence number.
    pub seq: u32,
}

/// One worker's queue in one namespace.
#[derive(Debug)]
pub struct SynQueue {
    netlink: Netlink,
    number: u16,
    /// `None`: programs are not notified.
    unreachable: Option<Arc<UnreachableSender>>,
}

impl AsFd for SynQueue {
    /// Readable while SYNs wait to be read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

impl SynQueue {
    fn open(number: u16, unreachable: Option<Arc<UnreachableSender>>) -> Result<Self> {
        let netlink = Netlink::open()?;
        let queue = Self { netlink, number, unreachable };
        // struct nfqnl_msg_config_cmd: bind, padding, family; struct nfqnl_msg_config_params: range, mode.
        let params = [&COPIED.to_be_bytes()[..], &[nfqnl::COPY_PACKET]].concat();
        queue.configure(Attributes::new().bytes(1, &[1, 0, 0, 0]))?;
        let limits = Attributes::new().bytes(2, &params).be32(3, HELD_MAX);
        queue.configure(limits.be32(4, nfqnl::FAIL_OPEN).be32(5, nfqnl::FAIL_OPEN))?;
        Ok(queue)
    }

    fn request(&self, kind: u16) -> NetfilterRequest {
        let family = libc::AF_UNSPEC as u8;
        NetfilterRequest { subsystem: nfqnl::SUBSYSTEM, kind, family, resource: self.number }
    }

    fn configure(&self, attributes: Attributes) -> Result<()> {
        self.netlink.ask(self.request(nfqnl::CONFIG), attributes)
    }

    /// The next SYN, if one waits. What is no SYN of TCP passes.
    ///
    /// # Errors
    /// ENOBUFS if messages were lost: those SYNs stay held, and the programs repeat them.
    pub fn next(&self) -> Result<Option<Syn>> {
        loop {
            let mut buffer = [0; 1024];
            let message = match self.netlink.receive(&mut buffer) {
                Ok(message) => message,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            };
            let Some((id, packet)) = queued(message) else { continue };
            match ends(packet) {
                Some((client, server, seq)) => return Ok(Some(Syn { packet: id, client, server, seq })),
                None => self.decide(id, Verdict::Pass, 0)?,
            }
        }
    }

    /// Decides about a packet. `mark`: that of interception.
    ///
    /// # Errors
    /// Of `send`. A packet that the kernel has given up meanwhile is no error.
    pub fn decide(&self, packet: u32, verdict: Verdict, mark: u32) -> Result<()> {
        let answer = match verdict {
            Verdict::Pass | Verdict::Refuse => nfqnl::ACCEPT,
            Verdict::Unreachable | Verdict::Drop => nfqnl::DROP,
        };
        let header = [answer.to_be_bytes(), packet.to_be_bytes()].concat();
        let attributes = Attributes::new().bytes(2, &header);
        let attributes = if verdict == Verdict::Refuse { attributes.be32(3, refused_mark(mark)) } else { attributes };
        self.netlink.request(self.request(nfqnl::VERDICT), attributes)
    }
}

impl SynQueue {
    /// Tells the program of a SYN with a sequence number that the server cannot be reached.
    ///
    /// # Errors
    /// Of `sendto`.
    pub fn tell_unreachable(&self, client: SocketAddr, server: SocketAddr, seq: u32) -> Result<()> {
        self.unreachable.as_ref().map_or(Ok(()), |sender| sender.tell(client, server, seq))
    }
}

/// Number and bytes of the packet in a message of a queue.
fn queued(message: &[u8]) -> Option<(u32, &[u8])> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != nfqnl::SUBSYSTEM << 8 | nfqnl::PACKET {
        return None;
    }
    // Behind the headers of netlink and nfnetlink.
    let header = netlink::attribute(message.get(20..)?, 1)?;
    let payload = netlink::attribute(message.get(20..)?, 10)?;
    Some((u32::from_be_bytes(header.get(..4)?.try_into().ok()?), payload))
}

/// Source, destination and sequence number of a TCP segment in an IP packet.
fn ends(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, u32)> {
    let is_tcp = |at: usize| packet.get(at) == Some(&(libc::IPPROTO_TCP as u8));
    let version = packet.first()? >> 4;
    let (from, to, tcp): (IpAddr, IpAddr, usize) = if version == 4 && is_tcp(9) {
        let address = |at| field(packet, at).map(Ipv4Addr::from);
        (address(12)?.into(), address(16)?.into(), usize::from(packet[0] & 15) * 4)
    } else if version == 6 && is_tcp(6) {
        // A SYN that the kernel's TCP has made has no extension headers.
        let address = |at| field(packet, at).map(Ipv6Addr::from);
        (address(8)?.to_canonical(), address(24)?.to_canonical(), 40)
    } else {
        return None;
    };
    let port = |at| field(packet, at).map(u16::from_be_bytes);
    let seq = field(packet, tcp + 4).map(u32::from_be_bytes)?;
    Some((SocketAddr::new(from, port(tcp)?), SocketAddr::new(to, port(tcp + 2)?), seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_a_syn_are_read() {
        let mut v4 = vec![0x46, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1];
        v4.extend([0x9c, 0x40, 0x1b, 0x58, 0, 0, 1, 2]);
        let read = ends(&v4).unwrap();
        assert_eq!(read, ("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:7000".parse().unwrap(), 0x102));
        assert!((0..v4.len()).all(|len| ends(&v4[..len]).is_none()), "cut short");
        let mut v6 = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        v6.extend("fd99::1".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend("::ffff:10.0.0.2".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend([0, 80, 0, 81, 1, 0, 0, 0]);
        assert_eq!(ends(&v6).unwrap(), ("[fd99::1]:80".parse().unwrap(), "10.0.0.2:81".parse().unwrap(), 1 << 24));
        v6[6] = 17;
        assert_eq!(ends(&v6), None, "UDP");
        assert_eq!(ends(&[]), None);
    }

    #[test]
    fn messages_that_are_no_packets_are_left_out() {
        assert_eq!(queued(&[]), None);
        let mut message = vec![0; 20];
        message[4..6].copy_from_slice(&(nfqnl::SUBSYSTEM << 8).to_ne_bytes());
        assert_eq!(queued(&message), None, "without attributes");
        message.extend(Attributes::new().bytes(1, &[0, 0, 0, 7, 8, 0, 1]).bytes(10, b"packet").into_bytes());
        assert_eq!(queued(&message), Some((7, &b"packet"[..])));
        message[4] = 2;
        assert_eq!(queued(&message), None, "another message");
    }

    #[test]
    fn ports_are_dealt_to_all_workers() {
        for workers in 1..=crate::config::WORKERS_MAX {
            let classes = port_classes(workers);
            assert!(classes >= workers && classes < 2 * workers.max(1) && classes.is_power_of_two());
        }
        assert_ne!(queue_number(81, 31), queue_number(82, 0));
    }
}
