//! Trains for memory that is reached in its process: one system call for the payloads of a train, and the same result as packets
//! one by one, whichever page cannot be reached. The packet whose range has that page is refused, and those before it have been
//! executed.
use crate::common::{ALL_RIGHTS, End, PD, Setup, describe, ip_of, qpn_of};
use burst_base::verbs::QpState;
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_mem::{ProcessMemory, Region};
use burst_wire::{Bth, HeadBuf, Opcode, Reth};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::Arc;

const NOW: Nanos = Nanos(1_000);
const MTU: usize = 1024;
const FIRST_PSN: u32 = 100;
const PAGE: usize = 4096;
const PAGES: usize = 9;
/// Packets of a message, and where its bytes go: not at the beginning of a page.
const PACKETS: u32 = 30;
const TO: usize = 1500;

/// Pages of this process, of which one may be missing, registered as memory that is reached in its process.
struct Pages(usize);

impl Pages {
    fn new(missing: Option<usize>) -> Pages {
        let map = |at, len, rights, flags| {
            // SAFETY: fresh memory, or a page of it that nothing but the kernel accesses from then on.
            unsafe { mmap_anonymous(at, len, rights, flags) }.expect("memory")
        };
        let at = map(core::ptr::null_mut(), PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        if let Some(page) = missing {
            // Shared and without rights: the kernel refuses it, and no other test gets its address.
            map(at.wrapping_byte_add(page * PAGE), PAGE, ProtFlags::empty(), MapFlags::SHARED | MapFlags::FIXED);
        }
        Pages(at as usize)
    }

    /// The byte at this offset, whose page is mapped.
    fn byte(&self, offset: usize) -> u8 {
        // SAFETY: a readable byte of this value.
        unsafe { ((self.0 + offset) as *const u8).read() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages of this value.
        unsafe { munmap(self.0 as *mut _, PAGES * PAGE) }.expect("mapped");
    }
}

/// An end whose memory is these pages, with a receive at [`TO`].
fn receiver(pages: &Pages) -> End {
    let setup = Setup::default();
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    end.mem.remove(end.lkey).expect("the memory");
    let memory = Arc::new(ProcessMemory::own().expect("a descriptor"));
    let mapping = Region::in_process(memory, pages.0 as u64);
    let region = Region::new(end.lkey, PD, 0, (PAGES * PAGE) as u64, ALL_RIGHTS, mapping);
    assert!(end.mem.insert(Arc::new(region)));
    end.post_receive(7, &[end.sge(TO as u64, PACKETS * MTU as u32)]);
    end
}

fn payload(k: u32) -> impl Iterator<Item = u8> {
    (0..MTU as u32).map(move |i| (i * 7 + k * 13 + i / 251) as u8 | 1)
}

/// The packets of a message. The last asks for an acknowledgement.
fn message(rkey: Option<u32>) -> Vec<Vec<u8>> {
    let opcodes = match rkey {
        None => [Opcode::RcSendFirst, Opcode::RcSendMiddle, Opcode::RcSendLast],
        Some(_) => [Opcode::RcWriteFirst, Opcode::RcWriteMiddle, Opcode::RcWriteLast],
    };
    let packet = |k: u32| {
        let (is_first, is_last) = (k == 0, k == PACKETS - 1);
        let opcode = opcodes[if is_first { 0 } else { 1 + usize::from(is_last) }];
        let bth = Bth { ack_req: is_last, ..Bth::new(opcode, qpn_of(1), Psn::new(FIRST_PSN + k)) };
        let head = HeadBuf::new(&bth);
        let head = match rkey {
            Some(rkey) if is_first => head.reth(Reth { addr: TO as u64, rkey: Rkey(rkey), len: PACKETS * MTU as u32 }),
            _ => head,
        };
        head.as_slice().iter().copied().chain(payload(k)).collect()
    };
    (0..PACKETS).map(packet).collect()
}

/// What is seen of an end after the message: answers, receives, reasons, state.
fn outcome(end: &mut End) -> impl PartialEq + core::fmt::Debug + use<> {
    let answers: Vec<String> = end.drain(NOW).iter().map(|bytes| describe(bytes)).collect();
    (answers, end.receive_statuses(), end.fx.reasons(), end.fx.events.clone(), end.qp.state(), end.qp.query().rq_psn)
}

/// System calls of this thread that have written; `None` where the kernel does not count them.
fn writes() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("syscw: ")?.parse().ok())
}

#[test]
fn a_train_has_the_result_of_its_packets_whichever_page_is_missing() {
    for write in [false, true] {
        for missing in (0..PAGES).map(Some).chain([None]) {
            let places = [Pages::new(missing), Pages::new(missing)];
            let [mut single, mut together] = [0, 1].map(|k| receiver(&places[k]));
            let packets = message(write.then_some(single.lkey));
            packets.iter().for_each(|packet| single.receive_from(NOW, ip_of(0), packet));
            let middles = 1..PACKETS as usize - 1;
            for train in [&packets[..1], &packets[middles.clone()], &packets[middles.end..]] {
                together.receive_train(NOW, ip_of(0), train);
            }
            assert_eq!(outcome(&mut together), outcome(&mut single), "{write} {missing:?}");
            // The first packet with a byte of the missing page, if the message has one.
            let hit = |k: &u32| {
                let start = TO + *k as usize * MTU;
                missing.is_some_and(|page| start < (page + 1) * PAGE && page * PAGE < start + MTU)
            };
            let first = (0..PACKETS).find(hit);
            let reason = if write { Reason::RemoteAccess } else { Reason::ReceiveProtection };
            assert_eq!(single.fx.count_of(reason), u32::from(first.is_some()), "{write} {missing:?}");
            let accepted = single.qp.query().rq_psn.diff(Psn::new(FIRST_PSN)) as u32;
            assert_eq!(accepted, first.unwrap_or(PACKETS), "the packet that is refused: {write} {missing:?}");
            for k in 0..first.unwrap_or(PACKETS) {
                let at = TO + k as usize * MTU;
                assert!(payload(k).enumerate().all(|(i, byte)| places.iter().all(|p| p.byte(at + i) == byte)), "{k}");
            }
        }
    }
}

#[test]
fn the_middle_packets_of_a_train_are_written_by_one_system_call() {
    for write in [false, true] {
        let pages = Pages::new(None);
        let mut end = receiver(&pages);
        let packets = message(write.then_some(end.lkey));
        let calls = |end: &mut End, train: &[Vec<u8>]| {
            let before = writes();
            end.receive_train(NOW, ip_of(0), train);
            writes().zip(before).map(|(now, before)| now - before)
        };
        let middles = 1..PACKETS as usize - 1;
        let counted = [&packets[..1], &packets[middles.clone()], &packets[middles.end..]].map(|t| calls(&mut end, t));
        assert!(counted == [Some(1); 3] || counted == [None; 3], "{counted:?}");
        assert_eq!(end.carried, middles.len() as u64);
    }
}
