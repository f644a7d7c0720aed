//! Classic BPF programs of the packet socket: which frames the kernel gives to the port, and to which worker.
//!
//! [`receive`] accepts UDP datagrams to the encapsulation's port over IPv4 or IPv6. First fragments of such datagrams are
//! accepted too, so that the port can count them. Of frames to another Ethernet address, which a promiscuous interface receives,
//! only the beginning is copied. Frames that this host sends are rejected.
//!
//! [`steer`] chooses the worker by the low four bits of the word that the encapsulation names.

use crate::sys::bpf::{Insn, op};
use burst_wire::{EtherType, IP_PROTOCOL_UDP};
use libc::{BPF_A, BPF_MSH, BPF_RET, BPF_W};
use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX};
use std::net::IpAddr;

/// `SKF_AD_OFF + SKF_AD_PKTTYPE`: the packet type, which says whether the frame is for this host.
const PACKET_TYPE: u32 = (-0x1000i32 + 4) as u32;
/// `SKF_NET_OFF`: base of offsets from the IP header.
const NET: u32 = -0x10_0000i32 as u32;
/// `PACKET_OTHERHOST` and `PACKET_OUTGOING`.
const OTHER: u32 = 3;
const OUTGOING: u32 = 4;
/// Bytes copied of frames that are only counted.
const SHORT: u32 = 128;
/// Next header value of an IPv6 fragment header.
const IPV6_FRAGMENT: u32 = 44;
const UDP: u32 = IP_PROTOCOL_UDP as u32;

// Offsets in a frame without a tag.
const ETHERTYPE: u32 = 12;
const IP: u32 = 14;
const V4_FRAGMENT: u32 = IP + 6;
const V4_PROTOCOL: u32 = IP + 9;
const V4_DST: u32 = IP + 16;
const V6_NEXT: u32 = IP + 6;
const V6_DST: u32 = IP + 24;
const V6_BODY: u32 = IP + 40;

/// Target of a comparison.
#[derive(Clone, Copy)]
enum FilterTarget {
    Next,
    Take,
    Whole,
    Drop,
    V6,
    Fragment,
}

/// A line of the program: an instruction, a comparison with two targets, or a label.
enum FilterLine {
    Plain(Insn),
    Branch(Insn, FilterTarget, FilterTarget),
    Label(FilterTarget),
}

fn load(size: u32, at: u32) -> FilterLine {
    FilterLine::Plain(op(BPF_LD | size | BPF_ABS, at))
}

/// Continues at `yes` if the loaded value equals `value`, else at `no`.
fn equal(value: u32, yes: FilterTarget, no: FilterTarget) -> FilterLine {
    FilterLine::Branch(op(BPF_JMP | BPF_JEQ | BPF_K, value), yes, no)
}

/// Continues at `yes` if the loaded value has any bit of `mask`, else at `no`.
fn any(mask: u32, yes: FilterTarget, no: FilterTarget) -> FilterLine {
    FilterLine::Branch(op(BPF_JMP | BPF_JSET | BPF_K, mask), yes, no)
}

/// The program of a port for datagrams to `udp_port`: of a port that serves all addresses of its interface, or `only` one.
pub fn receive(only: Option<IpAddr>, udp_port: u16) -> Vec<Insn> {
    let port = u32::from(udp_port);
    let mut lines = vec![load(BPF_W, PACKET_TYPE), equal(OUTGOING, FilterTarget::Drop, FilterTarget::Next)];
    lines.push(load(BPF_H, ETHERTYPE));
    lines.push(equal(u32::from(EtherType::IPV4.0), FilterTarget::Next, FilterTarget::V6));
    lines.extend([load(BPF_B, V4_PROTOCOL), equal(UDP, FilterTarget::Next, FilterTarget::Drop)]);
    lines.extend([load(BPF_H, V4_FRAGMENT), any(0x1fff, FilterTarget::Drop, FilterTarget::Next)]);
    lines.extend(destination(only, false));
    lines.push(FilterLine::Plain(op(BPF_LDX | BPF_B | BPF_MSH, IP)));
    lines.push(FilterLine::Plain(op(BPF_LD | BPF_H | BPF_IND, IP + 2)));
    lines.push(equal(port, FilterTarget::Take, FilterTarget::Drop));
    lines.push(FilterLine::Label(FilterTarget::V6));
    lines.push(equal(u32::from(EtherType::IPV6.0), FilterTarget::Next, FilterTarget::Drop));
    lines.extend(destination(only, true));
    lines.extend([load(BPF_B, V6_NEXT), equal(UDP, FilterTarget::Next, FilterTarget::Fragment)]);
    lines.extend([load(BPF_H, V6_BODY + 2), equal(port, FilterTarget::Take, FilterTarget::Drop)]);
    lines.push(FilterLine::Label(FilterTarget::Fragment));
    lines.push(equal(IPV6_FRAGMENT, FilterTarget::Next, FilterTarget::Drop));
    lines.extend([load(BPF_B, V6_BODY), equal(UDP, FilterTarget::Next, FilterTarget::Drop)]);
    lines.extend([load(BPF_H, V6_BODY + 2), any(0xfff8, FilterTarget::Drop, FilterTarget::Next)]);
    lines.extend([load(BPF_H, V6_BODY + 10), equal(port, FilterTarget::Take, FilterTarget::Drop)]);
    lines.push(FilterLine::Label(FilterTarget::Take));
    lines.push(load(BPF_W, PACKET_TYPE));
    lines.push(equal(OTHER, FilterTarget::Next, FilterTarget::Whole));
    lines.push(FilterLine::Plain(op(BPF_RET | BPF_K, SHORT)));
    lines.push(FilterLine::Label(FilterTarget::Whole));
    lines.push(FilterLine::Plain(op(BPF_RET | BPF_K, u32::MAX)));
    lines.push(FilterLine::Label(FilterTarget::Drop));
    lines.push(FilterLine::Plain(op(BPF_RET | BPF_K, 0)));
    assemble(&lines)
}

/// Compares the destination address with the only address served.
fn destination(only: Option<IpAddr>, v6: bool) -> Vec<FilterLine> {
    let (at, octets) = match only {
        Some(IpAddr::V4(ip)) if !v6 => (V4_DST, ip.octets().to_vec()),
        Some(IpAddr::V6(ip)) if v6 => (V6_DST, ip.octets().to_vec()),
        // The address is of the other family, so no packet is for it: the byte loaded last never has this value.
        Some(_) => return vec![equal(u32::MAX, FilterTarget::Next, FilterTarget::Drop)],
        None => return Vec::new(),
    };
    let word = |(i, word): (usize, &[u8; 4])| {
        [load(BPF_W, at + 4 * i as u32), equal(u32::from_be_bytes(*word), FilterTarget::Next, FilterTarget::Drop)]
    };
    octets.as_chunks::<4>().0.iter().enumerate().flat_map(word).collect()
}

/// Replaces the labels by distances.
fn assemble(lines: &[FilterLine]) -> Vec<Insn> {
    let count = |lines: &[FilterLine]| lines.iter().filter(|l| !matches!(l, FilterLine::Label(_))).count();
    let place = |to: FilterTarget| {
        let is = |line: &FilterLine| matches!(line, FilterLine::Label(l) if core::mem::discriminant(l) == core::mem::discriminant(&to));
        lines.iter().position(is).map(|at| count(&lines[..at]))
    };
    let mut code = Vec::new();
    for line in lines {
        let here = code.len() + 1;
        let distance = |to: FilterTarget| place(to).map_or(0, |at| u8::try_from(at - here).expect("a short program"));
        match line {
            FilterLine::Plain(insn) => code.push(*insn),
            FilterLine::Branch(insn, yes, no) => code.push(Insn { jt: distance(*yes), jf: distance(*no), ..*insn }),
            FilterLine::Label(_) => {}
        }
    }
    code
}

/// The program of a fanout group, which returns the number of a worker: the low four bits of the 32-bit word at offset `word_at`
/// of the UDP payload. Offsets count from the IP header, because the program of a group sees frames without their Ethernet
/// header.
pub fn steer(word_at: u32) -> [Insn; 8] {
    let jump = |k: u32, jt: u8, jf: u8| Insn { jt, jf, ..op(BPF_JMP | BPF_JEQ | BPF_K, k) };
    [
        op(BPF_LD | BPF_B | BPF_ABS, NET),
        op(BPF_ALU | BPF_AND | BPF_K, 0xf0),
        jump(0x40, 2, 0),
        op(BPF_LD | BPF_W | BPF_ABS, NET + 40 + 8 + word_at),
        jump(u32::MAX, 1, 1),
        op(BPF_LD | BPF_W | BPF_ABS, NET + 20 + 8 + word_at),
        op(BPF_ALU | BPF_AND | BPF_K, 0xf),
        op(BPF_RET | BPF_A, 0),
    ]
}
