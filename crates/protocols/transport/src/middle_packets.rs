//! Middle packets of trains: the words of their heads by which they are known, in both families.
//!
//! A middle packet of the selective repeat family says its index, and one of a WRITE its address. Both rise with the PSN; a
//! packet of which one does not ends the run, and is handled as a single packet.

use crate::qp_shared::QpShared;
use burst_base::num::MASK_24;
use burst_base::{Psn, Qpn, Rkey};
use burst_frame::MiddleRun;
use burst_wire::{Bth, OpKind, Opcode, Seth, Weth};

/// The bits by which the three words of a BTH tell a middle packet, in host order: opcode, padding, version and partition (not
/// the solicited and migration bits, not the membership bit); destination; acknowledgement request and PSN.
pub(crate) const BTH_MASKS: [u32; Bth::LEN / 4] = [0xff3f_7fff, 0x00ff_ffff, 0x80ff_ffff];
/// Opcode, padding, version and partition of packets without padding, in the default partition.
pub(crate) const DEFAULT_PARTITION: u32 = 0x7fff;

/// Counts the packets from the first on that have this opcode, this destination and rising PSNs from `psn`, have no padding and
/// ask for no acknowledgement; at most `count_max`.
pub(crate) fn count_middles(run: &MiddleRun<'_>, opcode: Opcode, qpn: Qpn, psn: Psn, count_max: usize) -> usize {
    let first = u32::from(opcode.number()) << 24 | DEFAULT_PARTITION;
    run.count(&BTH_MASKS, |k| [first, qpn.get(), psn.add(k).get()], count_max)
}

/// Heads of SENDs and READ responses, and of WRITEs.
pub(crate) const HEAD: usize = Bth::LEN + Seth::LEN;
pub(crate) const WRITE_HEAD: usize = HEAD + Weth::LEN;
const WORDS: usize = HEAD / 4;
const WRITE_WORDS: usize = WRITE_HEAD / 4;
/// The bits of the heads by which a middle packet is known. The MSN of READ responses is not compared.
const SEND_MASKS: [u32; WORDS] = [BTH_MASKS[0], BTH_MASKS[1], BTH_MASKS[2], u32::MAX, u32::MAX];
pub(crate) const READ_MASKS: [u32; WORDS] = [BTH_MASKS[0], BTH_MASKS[1], BTH_MASKS[2], 0xff00_0000, u32::MAX];
const WRITE_MASKS: [u32; WRITE_WORDS] =
    [BTH_MASKS[0], BTH_MASKS[1], BTH_MASKS[2], u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX];

/// Where the first middle packet of a run belongs.
pub(crate) struct MiddlePlace {
    pub(crate) psn: Psn,
    pub(crate) rsn: u32,
    pub(crate) index: u32,
    /// Address and key of a WRITE.
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
}

/// The first words of middle packet `k`: of this opcode, destination, PSN, RSN and index.
#[inline(always)]
pub(crate) fn middle_words(opcode: Opcode, qpn: Qpn, psn: Psn, (rsn, index): (u32, u32), k: u32) -> [u32; WORDS] {
    let first = u32::from(opcode.number()) << 24 | DEFAULT_PARTITION;
    [first, qpn.get(), psn.add(k).get(), rsn, (index + k) & MASK_24]
}

/// Number of packets at the beginning of `train`, at most `most`, that continue each other from `place` on; and the length of
/// their heads.
#[inline(always)]
pub(crate) fn count_selective_middles(
    qp: &QpShared,
    train: &MiddleRun<'_>,
    kind: OpKind,
    place: &MiddlePlace,
    most: usize,
) -> (usize, usize) {
    let &MiddlePlace { psn, rsn, index, addr, rkey } = place;
    let qpn = qp.id.qpn;
    if kind == OpKind::Send {
        let words = |k| middle_words(Opcode::RcSrSendMiddle, qpn, psn, (rsn, index), k);
        return (train.count(&SEND_MASKS, words, most), HEAD);
    }
    let words = |k: u32| {
        let [a, b, c, d, e] = middle_words(Opcode::RcSrWriteMiddle, qpn, psn, (rsn, index), k);
        let addr = addr.wrapping_add(u64::from(k) * u64::from(qp.mtu));
        [a, b, c, d, e, (addr >> 32) as u32, addr as u32, rkey.0]
    };
    (train.count(&WRITE_MASKS, words, most), WRITE_HEAD)
}
