//! Work requests and completions of URMA as a program and its worker exchange them: posts in a ring of records
//! ([`UrmaPost`]), completions as entries of completion queues ([`Cqe`]).

use burst_control::urma_calls::{URMA_NONE, UrmaPost};
use burst_shm::Cqe;
use burst_ubwire::{OrderTag, TaOpcode};
use burst_urma::{CompletionRecord, CrStatus, JfrWr, JfsWr, LocalRange, NodeEid, TargetKind, URMA_INLINE_MAX, WrData};

/// In a completion's `sl`: the object is a Jetty, not a JFR.
const IS_JETTY: u8 = 1;
/// In a completion's `sl`: the peer is known. The words of its EID, from the first on, are in `imm`, `vendor_err`, `wc_flags`,
/// and in `pkey_index` with `reserved`.
const HAS_REMOTE: u8 = 2;

const fn number_of(object: Option<u32>) -> u32 {
    match object {
        Some(number) => number,
        None => URMA_NONE,
    }
}

fn object_of(number: u32) -> Option<u32> {
    (number != URMA_NONE).then_some(number)
}

/// The record of a work request for a Jetty, and its inline data.
pub fn post_of(jetty: u32, wr: &JfsWr) -> (UrmaPost, &[u8]) {
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let flags = flag(wr.completion_order, UrmaPost::COMPLETION_ORDER)
        | flag(wr.fence, UrmaPost::FENCE)
        | flag(wr.complete, UrmaPost::COMPLETE);
    let mut post = UrmaPost {
        kind: UrmaPost::SEND,
        opcode: wr.opcode as u8,
        flags,
        hint: wr.hint,
        order: wr.order as u8,
        queue: jetty,
        target: number_of(wr.target),
        segment: number_of(wr.segment),
        notify_segment: number_of(wr.notify.map(|notify| notify.0)),
        notify_addr: wr.notify.map_or(0, |notify| notify.1),
        user_ctx: wr.user_ctx,
        remote_addr: wr.remote_addr,
        operand: wr.operand,
        swap: wr.swap,
        immediate: wr.immediate,
        ..UrmaPost::default()
    };
    match &wr.data {
        WrData::Local(range) => {
            (post.token_id, post.addr, post.len) = (range.token_id, range.addr, range.len);
            (post, &[])
        }
        WrData::Inline { len, bytes } => {
            let inline = &bytes[..usize::from(*len).min(bytes.len())];
            (post.inline_len, post.flags) = (inline.len() as u8, post.flags | UrmaPost::INLINE);
            (post, inline)
        }
    }
}

/// The record of a receive.
pub fn receive_post(jfr: u32, wr: &JfrWr) -> UrmaPost {
    let LocalRange { token_id, addr, len } = wr.range;
    UrmaPost { kind: UrmaPost::RECEIVE, queue: jfr, token_id, addr, len, user_ctx: wr.user_ctx, ..UrmaPost::default() }
}

/// The work request of a record. `None`: its numbers mean nothing.
pub fn request_of(post: &UrmaPost, inline: &[u8]) -> Option<JfsWr> {
    let has = |bit: u8| post.flags & bit != 0;
    let data = if has(UrmaPost::INLINE) { WrData::inline(inline)? } else { WrData::Local(range_of(post)) };
    Some(JfsWr {
        target: object_of(post.target),
        hint: post.hint,
        segment: object_of(post.segment),
        remote_addr: post.remote_addr,
        operand: post.operand,
        swap: post.swap,
        immediate: post.immediate,
        notify: object_of(post.notify_segment).map(|segment| (segment, post.notify_addr)),
        order: *[OrderTag::None, OrderTag::Relaxed, OrderTag::Strong].get(usize::from(post.order))?,
        completion_order: has(UrmaPost::COMPLETION_ORDER),
        fence: has(UrmaPost::FENCE),
        complete: has(UrmaPost::COMPLETE),
        ..JfsWr::new(TaOpcode::from_number(post.opcode)?, data, post.user_ctx)
    })
}

/// The receive of a record.
pub fn receive_of(post: &UrmaPost) -> JfrWr {
    JfrWr { range: range_of(post), user_ctx: post.user_ctx }
}

fn range_of(post: &UrmaPost) -> LocalRange {
    LocalRange { token_id: post.token_id, addr: post.addr, len: post.len }
}

/// The entry of a completion. Of the queue `queue` (a Jetty, or the receive queue of a receive) `finished` requests have ended.
pub fn cqe_of(cr: &CompletionRecord, queue: u32, finished: u32) -> Cqe {
    let (peer, remote_id) = cr.remote.unwrap_or((NodeEid::UNSPECIFIED, 0));
    let [high, low] = peer.words();
    let is_jetty = if cr.local_kind == TargetKind::Jfr { 0 } else { IS_JETTY };
    Cqe {
        wr_id: cr.user_ctx,
        timestamp_ns: cr.immediate,
        byte_len: cr.len,
        imm: (high >> 32) as u32,
        vendor_err: high as u32,
        wc_flags: (low >> 32) as u32,
        pkey_index: (low >> 16) as u16,
        reserved: low as u16,
        qpn: cr.local_id,
        src_qpn: remote_id,
        qp_cookie: queue,
        sq_consumer: finished,
        status: cr.status as u8,
        opcode: cr.opcode as u8,
        sl: if cr.remote.is_some() { is_jetty | HAS_REMOTE } else { is_jetty },
        is_recv: u8::from(cr.is_receive),
        ..Cqe::default()
    }
}

/// The completion in an entry.
pub fn record_of(cqe: &Cqe) -> CompletionRecord {
    let low = u64::from(cqe.wc_flags) << 32 | u64::from(cqe.pkey_index) << 16 | u64::from(cqe.reserved);
    let peer = NodeEid::of_words([u64::from(cqe.imm) << 32 | u64::from(cqe.vendor_err), low]);
    CompletionRecord {
        status: CrStatus::from_number(cqe.status).unwrap_or(CrStatus::RemOperation),
        user_ctx: cqe.wr_id,
        opcode: TaOpcode::from_number(cqe.opcode).unwrap_or(TaOpcode::Send),
        is_receive: cqe.is_recv != 0,
        len: cqe.byte_len,
        local_kind: if cqe.sl & IS_JETTY == 0 { TargetKind::Jfr } else { TargetKind::Jetty },
        local_id: cqe.qpn,
        remote: (cqe.sl & HAS_REMOTE != 0).then_some((peer, cqe.src_qpn)),
        immediate: cqe.timestamp_ns,
    }
}

/// A completion of a request that was refused before the node had it.
pub fn refused(jetty: u32, post: &UrmaPost, status: CrStatus) -> CompletionRecord {
    CompletionRecord {
        status,
        user_ctx: post.user_ctx,
        opcode: TaOpcode::from_number(post.opcode).unwrap_or(TaOpcode::Send),
        is_receive: false,
        len: 0,
        local_kind: TargetKind::Jetty,
        local_id: jetty,
        remote: None,
        immediate: 0,
    }
}

/// An entry of a completion queue as words.
pub(crate) fn words_of(cqe: &Cqe) -> [u64; 8] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let ([p0, p1], [r0, r1]) = (cqe.pkey_index.to_le_bytes(), cqe.reserved.to_le_bytes());
    let last = u64::from_le_bytes([cqe.status, cqe.opcode, cqe.sl, cqe.is_recv, p0, p1, r0, r1]);
    [
        cqe.wr_id,
        cqe.timestamp_ns,
        pair(cqe.byte_len, cqe.imm),
        pair(cqe.qpn, cqe.src_qpn),
        pair(cqe.wc_flags, cqe.vendor_err),
        pair(cqe.qp_cookie, cqe.sq_consumer),
        last,
        0,
    ]
}

/// The entry that is in words, as in [`burst_control::urma_calls::UrmaAnswer::Flushed`].
pub fn entry_of(words: &[u64; 8]) -> Cqe {
    let (low, high) = (|i: usize| words[i] as u32, |i: usize| (words[i] >> 32) as u32);
    let [status, opcode, sl, is_recv, p0, p1, r0, r1] = words[6].to_le_bytes();
    Cqe {
        wr_id: words[0],
        timestamp_ns: words[1],
        byte_len: low(2),
        imm: high(2),
        qpn: low(3),
        src_qpn: high(3),
        wc_flags: low(4),
        vendor_err: high(4),
        qp_cookie: low(5),
        sq_consumer: high(5),
        status,
        opcode,
        sl,
        is_recv,
        pkey_index: u16::from_le_bytes([p0, p1]),
        reserved: u16::from_le_bytes([r0, r1]),
        ..Cqe::default()
    }
}

const _: () = assert!(URMA_INLINE_MAX + UrmaPost::BYTES <= burst_shm::record_ring::RECORD_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_out_as_it_went_in() {
        let local = WrData::Local(LocalRange { token_id: 1, addr: 2, len: 3 });
        let mut wr = JfsWr::new(TaOpcode::WriteNotify, local, 4);
        (wr.target, wr.segment, wr.notify, wr.hint) = (Some(5), Some(6), Some((7, 8)), 9);
        (wr.remote_addr, wr.operand, wr.swap, wr.immediate) = (10, 11, 12, 13);
        (wr.order, wr.completion_order, wr.fence, wr.complete) = (OrderTag::Strong, true, true, false);
        let inline = JfsWr::new(TaOpcode::Send, WrData::inline(b"abc").expect("it fits"), 1);
        for wr in [wr, inline] {
            let (post, data) = post_of(20, &wr);
            let record = [&post.to_bytes()[..], data].concat();
            let (parsed, inline) = UrmaPost::parse(&record).expect("whole");
            assert_eq!(parsed.queue, 20);
            let back = request_of(&parsed, inline).expect("known numbers");
            assert_eq!(format!("{back:?}"), format!("{wr:?}"));
        }
        let (post, _) = post_of(20, &wr);
        assert!(request_of(&UrmaPost { order: 3, ..post }, &[]).is_none());
        assert!(request_of(&UrmaPost { opcode: 0xee, ..post }, &[]).is_none());
        assert!(request_of(&UrmaPost { flags: UrmaPost::INLINE, ..post }, &[0; 65]).is_none());
    }

    #[test]
    fn a_completion_comes_out_as_it_went_in() {
        let cr = CompletionRecord {
            status: CrStatus::LocOperation,
            user_ctx: 1,
            opcode: TaOpcode::SendImm,
            is_receive: true,
            len: 2,
            local_kind: TargetKind::Jetty,
            local_id: 3,
            remote: Some((NodeEid::new(std::array::from_fn(|at| 0xf0 - at as u8)), 4)),
            immediate: u64::MAX,
        };
        for cr in [cr, CompletionRecord { remote: None, local_kind: TargetKind::Jfr, ..cr }] {
            let cqe = cqe_of(&cr, 7, 8);
            assert_eq!((record_of(&cqe), cqe.qp_cookie, cqe.sq_consumer), (cr, 7, 8));
        }
    }

    #[test]
    fn an_entry_comes_out_of_its_words() {
        let cqe = Cqe {
            wr_id: 1,
            timestamp_ns: 2,
            byte_len: 3,
            imm: 4,
            qpn: 5,
            src_qpn: 6,
            wc_flags: 7,
            vendor_err: 8,
            qp_cookie: 9,
            sq_consumer: 10,
            status: 11,
            opcode: 12,
            sl: 13,
            is_recv: 14,
            pkey_index: 15,
            reserved: 16,
            ..Cqe::default()
        };
        assert_eq!(entry_of(&words_of(&cqe)), cqe);
    }
}
