//! What the kernel hands to the port: classic BPF over whole frames.
//!
//! [`receive`] lets through UDP to the RoCEv2 port over IPv4 or IPv6, first fragments of it included (so that they can be
//! counted), whatever the addresses. Of frames to another Ethernet address, which a promiscuous interface shows, only
//! the beginning is copied. What this host sends itself is left out.
//!
//! [`steer`] chooses the worker: the low four bits of the destination QPN, as the engine numbers queue pairs.

use crate::ROCE_UDP_PORT;
use crate::sys::bpf::{Insn, op};
use burst_wire::{EtherType, IP_PROTOCOL_UDP};
use libc::{BPF_A, BPF_MSH, BPF_RET, BPF_W};
use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX};
use std::net::IpAddr;

/// `SKF_AD_OFF + SKF_AD_PKTTYPE`: whom the frame is for.
const PACKET_TYPE: u32 = (-0x1000i32 + 4) as u32;
/// `SKF_NET_OFF`: offsets from the IP header.
const NET: u32 = -0x10_0000i32 as u32;
/// `PACKET_OTHERHOST` and `PACKET_OUTGOING`.
const OTHER: u32 = 3;
const OUTGOING: u32 = 4;
/// Bytes copied of frames that are counted only.
const SHORT: u32 = 128;
/// Next header of an IPv6 fragment.
const IPV6_FRAGMENT: u32 = 44;
const UDP: u32 = IP_PROTOCOL_UDP as u32;
const PORT: u32 = ROCE_UDP_PORT as u32;

// Offsets in a frame without a tag.
const ETHERTYPE: u32 = 12;
const IP: u32 = 14;
const V4_FRAGMENT: u32 = IP + 6;
const V4_PROTOCOL: u32 = IP + 9;
const V4_DST: u32 = IP + 16;
const V6_NEXT: u32 = IP + 6;
const V6_DST: u32 = IP + 24;
const V6_BODY: u32 = IP + 40;

/// Where a comparison leads.
#[derive(Clone, Copy)]
enum To {
    Next,
    Take,
    Whole,
    Drop,
    V6,
    Fragment,
}

/// A line of the program: an instruction, or one with two ways to go on.
enum Line {
    Plain(Insn),
    Branch(Insn, To, To),
    Label(To),
}

fn load(size: u32, at: u32) -> Line {
    Line::Plain(op(BPF_LD | size | BPF_ABS, at))
}

/// On `value`: `yes`, else `no`.
fn equal(value: u32, yes: To, no: To) -> Line {
    Line::Branch(op(BPF_JMP | BPF_JEQ | BPF_K, value), yes, no)
}

/// On any bit of `mask`: `yes`, else `no`.
fn any(mask: u32, yes: To, no: To) -> Line {
    Line::Branch(op(BPF_JMP | BPF_JSET | BPF_K, mask), yes, no)
}

/// The program of a port that serves all addresses, or only one.
pub fn receive(only: Option<IpAddr>) -> Vec<Insn> {
    let mut lines = vec![load(BPF_W, PACKET_TYPE), equal(OUTGOING, To::Drop, To::Next)];
    lines.push(load(BPF_H, ETHERTYPE));
    lines.push(equal(u32::from(EtherType::IPV4.0), To::Next, To::V6));
    lines.extend([load(BPF_B, V4_PROTOCOL), equal(UDP, To::Next, To::Drop)]);
    lines.extend([load(BPF_H, V4_FRAGMENT), any(0x1fff, To::Drop, To::Next)]);
    lines.extend(destination(only, false));
    lines.push(Line::Plain(op(BPF_LDX | BPF_B | BPF_MSH, IP)));
    lines.push(Line::Plain(op(BPF_LD | BPF_H | BPF_IND, IP + 2)));
    lines.push(equal(PORT, To::Take, To::Drop));
    lines.push(Line::Label(To::V6));
    lines.push(equal(u32::from(EtherType::IPV6.0), To::Next, To::Drop));
    lines.extend(destination(only, true));
    lines.extend([load(BPF_B, V6_NEXT), equal(UDP, To::Next, To::Fragment)]);
    lines.extend([load(BPF_H, V6_BODY + 2), equal(PORT, To::Take, To::Drop)]);
    lines.push(Line::Label(To::Fragment));
    lines.push(equal(IPV6_FRAGMENT, To::Next, To::Drop));
    lines.extend([load(BPF_B, V6_BODY), equal(UDP, To::Next, To::Drop)]);
    lines.extend([load(BPF_H, V6_BODY + 2), any(0xfff8, To::Drop, To::Next)]);
    lines.extend([load(BPF_H, V6_BODY + 10), equal(PORT, To::Take, To::Drop)]);
    lines.push(Line::Label(To::Take));
    lines.push(load(BPF_W, PACKET_TYPE));
    lines.push(equal(OTHER, To::Next, To::Whole));
    lines.push(Line::Plain(op(BPF_RET | BPF_K, SHORT)));
    lines.push(Line::Label(To::Whole));
    lines.push(Line::Plain(op(BPF_RET | BPF_K, u32::MAX)));
    lines.push(Line::Label(To::Drop));
    lines.push(Line::Plain(op(BPF_RET | BPF_K, 0)));
    assemble(&lines)
}

/// Compares the destination with the one address served.
fn destination(only: Option<IpAddr>, v6: bool) -> Vec<Line> {
    let (at, octets) = match only {
        Some(IpAddr::V4(ip)) if !v6 => (V4_DST, ip.octets().to_vec()),
        Some(IpAddr::V6(ip)) if v6 => (V6_DST, ip.octets().to_vec()),
        // Of the other family: nothing is for it. No word is loaded that could have this value.
        Some(_) => return vec![equal(u32::MAX, To::Next, To::Drop)],
        None => return Vec::new(),
    };
    let word = |(i, word): (usize, &[u8; 4])| {
        [load(BPF_W, at + 4 * i as u32), equal(u32::from_be_bytes(*word), To::Next, To::Drop)]
    };
    octets.as_chunks::<4>().0.iter().enumerate().flat_map(word).collect()
}

/// Instructions with distances instead of labels.
fn assemble(lines: &[Line]) -> Vec<Insn> {
    let count = |lines: &[Line]| lines.iter().filter(|l| !matches!(l, Line::Label(_))).count();
    let place = |to: To| {
        let is =
            |line: &Line| matches!(line, Line::Label(l) if core::mem::discriminant(l) == core::mem::discriminant(&to));
        lines.iter().position(is).map(|at| count(&lines[..at]))
    };
    let mut code = Vec::new();
    for line in lines {
        let here = code.len() + 1;
        let distance = |to: To| place(to).map_or(0, |at| u8::try_from(at - here).expect("a short program"));
        match line {
            Line::Plain(insn) => code.push(*insn),
            Line::Branch(insn, yes, no) => code.push(Insn { jt: distance(*yes), jf: distance(*no), ..*insn }),
            Line::Label(_) => {}
        }
    }
    code
}

/// The program of a fanout group: worker number of the frame's queue pair. Offsets count from the IP header, because
/// a group's program sees frames without their Ethernet header.
pub fn steer() -> [Insn; 8] {
    let jump = |k: u32, jt: u8, jf: u8| Insn { jt, jf, ..op(BPF_JMP | BPF_JEQ | BPF_K, k) };
    [
        op(BPF_LD | BPF_B | BPF_ABS, NET),
        op(BPF_ALU | BPF_AND | BPF_K, 0xf0),
        jump(0x40, 2, 0),
        op(BPF_LD | BPF_W | BPF_ABS, NET + 40 + 8 + 4),
        jump(u32::MAX, 1, 1),
        op(BPF_LD | BPF_W | BPF_ABS, NET + 20 + 8 + 4),
        op(BPF_ALU | BPF_AND | BPF_K, 0xf),
        op(BPF_RET | BPF_A, 0),
    ]
}
