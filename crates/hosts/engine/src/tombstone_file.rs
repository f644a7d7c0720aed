//! The tombstone file of a worker: the connected queue pairs, for a successor of this process.
//!
//! A supervisor keeps the file, a memfd. The worker writes a record when a queue pair is connected (RTR) and clears it when the
//! queue pair is destroyed; both are one system call. When the process has fallen, its successor makes a [`Tombstone`] of each
//! record ([`TombstoneFile::take_over`]) and moves the records to the first part of the file: if the successor falls as well
//! before their lifetime ends, the next one still answers.
//!
//! The expected PSN of each queue pair is in a second memfd, which is mapped: the worker stores it after each burst and turn.
//! With it the successor tells peers at once that have requests outstanding and would otherwise wait for their time-out.
//!
//! The files are the memory of a process that crashed: each record has a checksum and each field is checked. A PSN needs no
//! check: each value is one, and a peer ignores a NAK for a PSN that it has not outstanding.

use crate::qpn::{SLOT_MAX, slot_of, worker_of};
use crate::tombstone::{LINGER, TOMBSTONES_MAX, Tombstone};
use burst_base::gid::gid_of;
use burst_base::{DeviceId, Nanos, Psn, Qpn};
use burst_cm::CmIds;
use burst_frame::Flow;
use burst_shm::words::SharedWords;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes of a record.
const RECORD: usize = 80;
/// Bytes of the first part: records of former processes.
const FORMER_BYTES: u64 = (TOMBSTONES_MAX * RECORD) as u64;
/// First bytes of a record.
const MAGIC: [u8; 4] = *b"QPTS";

/// Set in a note of a PSN, which has 24 bits.
const PSN_KNOWN: u32 = 1 << 31;

/// A record's bytes.
type Record = [u8; RECORD];

/// The tombstone file of a worker.
#[derive(Debug)]
pub struct TombstoneFile {
    records: File,
    /// The expected PSN of each entry of the worker's table, and [`PSN_KNOWN`].
    psns: SharedWords,
}

impl TombstoneFile {
    /// A new, empty file in memory.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> io::Result<TombstoneFile> {
        let records = memfd_create("burst-tombstones", MemfdFlags::CLOEXEC)?.into();
        Ok(TombstoneFile { records, psns: new_psns()? })
    }

    /// The files of a predecessor: records and PSNs. Without the latter, or if they are of no use, no PSN is known.
    ///
    /// # Errors
    /// The system's.
    pub fn from_fds(records: OwnedFd, psns: Option<OwnedFd>) -> io::Result<TombstoneFile> {
        let psns = psns.and_then(|fd| SharedWords::from_fd(fd).ok()).filter(|psns| psns.len() >= SLOT_MAX as usize);
        Ok(TombstoneFile { records: records.into(), psns: psns.map_or_else(new_psns, Ok)? })
    }

    /// The descriptor of the records.
    pub fn records_fd(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }

    /// The descriptor of the PSNs.
    pub fn psns_fd(&self) -> Option<BorrowedFd<'_>> {
        self.psns.fd()
    }

    /// Notes the PSN that the queue pair in entry `index` expects next.
    #[inline]
    pub fn note_expected(&self, index: u32, psn: Psn) {
        self.psns.set(index, psn.get() | PSN_KNOWN);
    }

    /// Writes the record of the queue pair in entry `index` of the worker's table.
    pub fn write(&self, index: u32, stone: &Tombstone) {
        // Without the record (memory is exhausted) the peer must wait for its retries.
        let _ = self.records.write_all_at(&encode(stone), place(index));
    }

    /// Clears the record of entry `index`.
    pub fn clear(&self, index: u32) {
        let _ = self.records.write_all_at(&[0; RECORD], place(index));
    }

    /// The tombstones of a former process that are valid for `worker` with `devices` devices and not older than their lifetime.
    /// They move to the first part of the file; the second part is empty then.
    ///
    /// # Errors
    /// The system's.
    pub fn take_over(&self, now: Nanos, worker: u32, devices: usize) -> io::Result<Vec<Tombstone>> {
        let stones = self.read(now, worker, devices)?;
        let mut former = vec![0; FORMER_BYTES as usize];
        for (record, stone) in former.chunks_exact_mut(RECORD).zip(&stones) {
            record.copy_from_slice(&encode(stone));
        }
        // In this order: if this process falls in between, records are there twice, and one is used.
        self.records.write_all_at(&former, 0)?;
        self.records.set_len(FORMER_BYTES)?;
        Ok(stones)
    }

    /// The tombstones of queue pairs that another process, which has ended, has noted here.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, now: Nanos, worker: u32, devices: usize) -> io::Result<Vec<Tombstone>> {
        let length = self.records.metadata()?.len().min(place(SLOT_MAX));
        let mut bytes = vec![0; length as usize];
        self.records.read_exact_at(&mut bytes, 0)?;
        let (mut stones, mut known) = (Vec::new(), HashSet::new());
        for (at, record) in bytes.chunks_exact(RECORD).enumerate() {
            let is_of_former = (at * RECORD) < FORMER_BYTES as usize;
            let Some(mut stone) = record.first_chunk().and_then(decode) else { continue };
            let valid = worker_of(stone.qpn) == worker
                && (1..SLOT_MAX - 1).contains(&slot_of(stone.qpn))
                && stone.device.index() < devices;
            if !is_of_former {
                stone.until = now + LINGER;
                let noted = self.psns.get(at - TOMBSTONES_MAX).filter(|noted| noted & PSN_KNOWN != 0);
                stone.expected = noted.map(|noted| Psn::new(noted & 0xff_ffff));
            }
            let lives = stone.until > now && stone.until <= now + LINGER;
            if valid && lives && known.insert(stone.qpn) {
                stones.push(stone);
            }
        }
        // The newest are in the second part.
        let surplus = stones.len().saturating_sub(TOMBSTONES_MAX);
        stones.drain(..surplus);
        Ok(stones)
    }
}

fn new_psns() -> io::Result<SharedWords> {
    SharedWords::create(SLOT_MAX as usize).map_err(io::Error::other)
}

/// Offset of the record of entry `index`.
fn place(index: u32) -> u64 {
    FORMER_BYTES + u64::from(index) * RECORD as u64
}

/// An address of a host, or `None`.
fn address(octets: [u8; 16]) -> Option<IpAddr> {
    let ip = Ipv6Addr::from(octets).to_canonical();
    let no_host = ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    (!no_host).then_some(ip)
}

/// FNV-1a, 32 bits (draft-eastlake-fnv): tells a record from stray bytes.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn encode(stone: &Tombstone) -> Record {
    // The file has RC queue pairs only.
    let Tombstone { qpn, peer, cm, device, flow, until, expected: _, is_xrc: _ } = stone;
    let ids = cm.unwrap_or_default();
    let mut record = [0; RECORD];
    record[..4].copy_from_slice(&MAGIC);
    let mut at = 8;
    let mut put = |bytes: &[u8]| {
        record[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&qpn.get().to_le_bytes());
    put(&peer.get().to_le_bytes());
    put(&gid_of(flow.src));
    put(&gid_of(flow.dst));
    put(&until.0.to_le_bytes());
    put(&flow.flow_label.to_le_bytes());
    put(&flow.scope.to_le_bytes());
    put(&ids.local.to_le_bytes());
    put(&ids.remote.to_le_bytes());
    put(&flow.src_port.to_le_bytes());
    put(&[device.0 as u8, flow.tos, flow.hop_limit]);
    let sum = checksum(&record[8..]);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
    record
}

fn decode(record: &Record) -> Option<Tombstone> {
    let word = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    if record[..4] != MAGIC || word(4) != checksum(&record[8..]) {
        return None;
    }
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let octets = |at: usize| -> [u8; 16] { std::array::from_fn(|i| record[at + i]) };
    let number = |at: usize| Some(word(at)).filter(|n| (2..Qpn::MULTICAST.get()).contains(n)).map(Qpn::new);
    let (src, dst) = (address(octets(16))?, address(octets(32))?);
    if src.is_ipv4() != dst.is_ipv4() {
        return None;
    }
    let flow = Flow {
        src,
        dst,
        src_port: u16::from_le_bytes([record[72], record[73]]),
        tos: record[75],
        hop_limit: record[76],
        flow_label: word(56),
        scope: word(60),
    };
    let device = DeviceId::from_index(usize::from(record[74]));
    let cm = Some(CmIds { local: word(64), remote: word(68) }).filter(|ids| *ids != CmIds::default());
    let (qpn, peer, until) = (number(8)?, number(12)?, Nanos(long(48)));
    Some(Tombstone { qpn, peer, is_xrc: false, cm, device, flow, until, expected: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_ms(100_000);

    fn stone(qpn: u32) -> Tombstone {
        let flow = Flow {
            src: IpAddr::from([10, 0, 0, 1]),
            dst: IpAddr::from([10, 0, 0, 2]),
            src_port: 50_000,
            tos: 104,
            hop_limit: 63,
            flow_label: 0xabcde,
            scope: 2,
        };
        let (qpn, peer, until) = (Qpn::new(qpn), Qpn::new(77), NOW + LINGER);
        Tombstone { qpn, peer, is_xrc: false, cm: None, device: DeviceId(1), flow, until, expected: None }
    }

    fn numbers(stones: &[Tombstone]) -> Vec<u32> {
        stones.iter().map(|stone| stone.qpn.get()).collect()
    }

    #[test]
    fn a_record_keeps_every_field() {
        let v6 = Flow { src: "fe80::1".parse().unwrap(), dst: "fd00::2".parse().unwrap(), ..stone(0x500).flow };
        let cm = Some(CmIds { local: 3, remote: 4 });
        for stone in [stone(0x500), Tombstone { flow: v6, cm, ..stone(0x510) }] {
            assert_eq!(decode(&encode(&stone)), Some(stone));
        }
    }

    #[test]
    fn connected_queue_pairs_become_tombstones_and_destroyed_ones_do_not() {
        let file = TombstoneFile::create().expect("a memfd");
        (1..=3).for_each(|n| file.write(n, &stone(n << 4)));
        file.clear(2);
        let stones = file.take_over(NOW, 0, 2).expect("read");
        assert_eq!(numbers(&stones), [1 << 4, 3 << 4]);
        assert!(stones.iter().all(|stone| stone.until == NOW + LINGER));
    }

    #[test]
    fn the_expected_psn_is_the_last_that_was_noted() {
        let file = TombstoneFile::create().expect("a memfd");
        (1..=3).for_each(|n| file.write(n, &stone(n << 4)));
        file.note_expected(1, Psn::new(5));
        file.note_expected(1, Psn::new(0));
        file.note_expected(3, Psn::new(0xff_ffff));
        let copies = (file.records_fd().try_clone_to_owned(), file.psns_fd().expect("a memfd").try_clone_to_owned());
        drop(file);
        let file = TombstoneFile::from_fds(copies.0.expect("a copy"), copies.1.ok()).expect("mapped");
        let expected = |file: &TombstoneFile, now| -> Vec<_> {
            file.take_over(now, 0, 2).expect("read").iter().map(|stone| stone.expected.map(Psn::get)).collect()
        };
        assert_eq!(expected(&file, NOW), [Some(0), None, Some(0xff_ffff)]);
        assert_eq!(expected(&file, NOW), [None; 3], "those peers know it already");
    }

    #[test]
    fn psns_of_no_use_are_replaced() {
        let records = || File::from(memfd_create("records", MemfdFlags::CLOEXEC).expect("a memfd")).into();
        let short = SharedWords::create(1024).expect("memory");
        let foreign = [None, Some(records()), short.fd().and_then(|fd| fd.try_clone_to_owned().ok())];
        for psns in foreign {
            let file = TombstoneFile::from_fds(records(), psns).expect("new ones");
            file.note_expected(SLOT_MAX - 1, Psn::new(5));
        }
    }

    #[test]
    fn a_second_fall_keeps_the_tombstones_for_the_rest_of_their_lifetime() {
        let file = TombstoneFile::create().expect("a memfd");
        file.write(1, &stone(0x500));
        file.take_over(NOW, 0, 2).expect("read");
        file.write(1, &stone(0x510));
        let later = NOW + Nanos(LINGER.0 / 2);
        assert_eq!(numbers(&file.take_over(later, 0, 2).expect("read")), [0x500, 0x510]);
        assert_eq!(numbers(&file.take_over(NOW + LINGER, 0, 2).expect("read")), [0x510]);
        assert!(file.take_over(later + LINGER, 0, 2).expect("read").is_empty());
    }

    #[test]
    fn nothing_of_a_crashed_process_is_believed() {
        let file = TombstoneFile::create().expect("a memfd");
        let flow = stone(0x500).flow;
        let wrong = [
            Tombstone { device: DeviceId(2), ..stone(0x500) },
            stone(0x501),
            stone(0x0),
            stone(0x00ff_fff0),
            Tombstone { peer: Qpn::new(1), ..stone(0x510) },
            Tombstone { flow: Flow { dst: IpAddr::from([224, 0, 0, 1]), ..flow }, ..stone(0x520) },
            Tombstone { flow: Flow { src: IpAddr::from([0; 4]), ..flow }, ..stone(0x530) },
            Tombstone { flow: Flow { src: "fd00::1".parse().unwrap(), ..flow }, ..stone(0x540) },
        ];
        (1..).zip(&wrong).for_each(|(n, stone)| file.write(n, stone));
        for at in 0..RECORD {
            let mut bytes = encode(&stone(0x550));
            bytes[at] ^= 0x10;
            file.records.write_all_at(&bytes, place(100 + at as u32)).expect("written");
        }
        assert_eq!(numbers(&file.take_over(NOW, 0, 2).expect("read")), [0; 0]);
    }

    #[test]
    fn a_file_of_any_length_is_read() {
        for length in [1, FORMER_BYTES - 1, FORMER_BYTES + 1, place(SLOT_MAX) + 1, 1 << 40] {
            let file = TombstoneFile::create().expect("a memfd");
            file.write(1, &stone(0x500));
            file.records.set_len(length).expect("a length");
            let found = file.take_over(NOW, 0, 2).expect("read").len();
            assert_eq!(found, usize::from(length > place(1)), "{length}");
        }
    }
}
