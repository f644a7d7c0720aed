//! Tells programs that their server cannot be reached, as a router would: by ICMP and ICMPv6 messages about SYNs that are held.
//!
//! The kernel cannot reject these SYNs so itself: its answer would have the server's address as source, which is none of this
//! host. A raw socket may send it. The message quotes the SYN's addresses, ports and sequence number, by which the program's TCP
//! knows its socket (RFC 792, RFC 4443 3.1, RFC 5927 4.1).

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};
use std::io::Result;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
/// Destination unreachable: host unreachable; ICMPv6: address unreachable.
const HOST_UNREACHABLE: [u8; 2] = [3, 1];
const ADDRESS_UNREACHABLE: [u8; 2] = [1, 3];
const HOPS: u8 = 64;

/// Raw sockets of one namespace.
#[derive(Debug)]
pub struct UnreachableSender {
    v4: OwnedFd,
    /// `None`: the kernel has no IPv6.
    v6: Option<OwnedFd>,
}

impl UnreachableSender {
    /// Opens them in the calling thread's namespace.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing, or no descriptors.
    pub fn open() -> Result<Self> {
        // IPPROTO_RAW: what is sent begins with its IP header, and nothing is received.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let open = |family| net::socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW));
        Ok(Self { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok() })
    }

    /// Tells the client of a SYN with this sequence number that the server cannot be reached.
    ///
    /// # Errors
    /// Of `sendto`.
    pub fn tell(&self, client: SocketAddr, server: SocketAddr, seq: u32) -> Result<()> {
        let (Some(message), Some(socket)) =
            (message(client, server, seq), if client.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() })
        else {
            return Ok(());
        };
        net::sendto(socket, &message, SendFlags::empty(), &SocketAddr::new(client.ip(), 0))?;
        Ok(())
    }
}

/// The message from the server's address to the client's; `None`: they are of two families.
fn message(client: SocketAddr, server: SocketAddr, seq: u32) -> Option<Vec<u8>> {
    let tcp = [&client.port().to_be_bytes()[..], &server.port().to_be_bytes(), &seq.to_be_bytes()].concat();
    match (client.ip(), server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            let quoted = [ipv4(TCP, 20 + tcp.len(), client, server), tcp].concat();
            let notice = icmp(HOST_UNREACHABLE, &[], &quoted);
            Some([ipv4(ICMP, 20 + notice.len(), server, client), notice].concat())
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            let quoted = [ipv6(TCP, tcp.len(), client, server), tcp].concat();
            // RFC 8200 8.1: addresses, length and protocol count for the checksum.
            let len = (8 + quoted.len()) as u32;
            let pseudo = [&server.octets()[..], &client.octets(), &len.to_be_bytes(), &[0, 0, 0, ICMPV6]].concat();
            let notice = icmp(ADDRESS_UNREACHABLE, &pseudo, &quoted);
            Some([ipv6(ICMPV6, notice.len(), server, client), notice].concat())
        }
        _ => None,
    }
}

/// A header of IPv4 with its checksum.
fn ipv4(protocol: u8, len: usize, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let len = (len as u16).to_be_bytes();
    let mut header = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, HOPS, protocol, 0, 0];
    header.extend([from.octets(), to.octets()].concat());
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    header
}

/// A header of IPv6; `len`: of what follows it.
fn ipv6(protocol: u8, len: usize, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let len = (len as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, len[0], len[1], protocol, HOPS][..], &from.octets(), &to.octets()].concat()
}

/// Type, code, checksum, four unused bytes, and what is quoted. `pseudo`: what counts for the checksum besides.
fn icmp([kind, code]: [u8; 2], pseudo: &[u8], quoted: &[u8]) -> Vec<u8> {
    let mut bytes = [&[kind, code, 0, 0, 0, 0, 0, 0], quoted].concat();
    let sum = checksum(&[pseudo, &bytes].concat()).to_be_bytes();
    bytes[2..4].copy_from_slice(&sum);
    bytes
}

/// The checksum of RFC 1071 over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_quote_the_syn_and_their_checksums_are_right() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let v4 = message(at("10.0.0.1:4000"), at("10.0.0.2:80"), 0x0102_0304).unwrap();
        assert_eq!((v4.len(), checksum(&v4[..20]), checksum(&v4[20..])), (56, 0, 0), "a sum with itself is zero");
        assert_eq!((&v4[12..20], &v4[20..22]), (&[10, 0, 0, 2, 10, 0, 0, 1][..], &[3, 1][..]));
        assert_eq!((&v4[40..48], v4[37]), (&[10, 0, 0, 1, 10, 0, 0, 2][..], TCP));
        assert_eq!(v4[48..], [15, 160, 0, 80, 1, 2, 3, 4]);
        let v6 = message(at("[fd00::1]:4000"), at("[fd00::2]:80"), 0x0102_0304).unwrap();
        assert_eq!((v6.len(), v6[6], v6[4..6].to_vec(), &v6[40..42]), (96, ICMPV6, vec![0, 56], &[1, 3][..]));
        let pseudo = [&v6[8..40], &[0, 0, 0, 56, 0, 0, 0, ICMPV6]].concat();
        assert_eq!(checksum(&[&pseudo, &v6[40..]].concat()), 0);
        assert_eq!(v6[88..], [15, 160, 0, 80, 1, 2, 3, 4]);
        assert_eq!(message(at("[fd00::1]:4000"), at("10.0.0.2:80"), 1), None);
    }
}
