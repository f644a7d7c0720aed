//! The queue pair's states: the transitions between them, and the attributes that each requires or allows.
//!
//! One table ([`TRANSITIONS`]) holds the rules of `ibv_modify_qp` (IBA 11.2.5.2, tables 91-96), one row for each pair of
//! states, one cell for each service type. [`check`] looks a transition up and changes nothing.

use crate::api::{ModifyError, RD_ATOMIC_MAX};
use burst_base::verbs::{Mtu, QpAttr, QpState, QpType, attr_mask as m};

/// Attributes that a transition requires, and further ones that it allows.
#[derive(Clone, Copy, Debug)]
struct Rule {
    required: u32,
    optional: u32,
}

/// A row: from, to, and the rules of RC, UC, UD, XRC initiator and XRC target (none: the service type lacks the
/// transition).
pub(crate) struct Transition {
    from: QpState,
    to: QpState,
    rules: [Option<Rule>; 5],
}

const fn rule(required: u32, optional: u32) -> Option<Rule> {
    Some(Rule { required, optional })
}

const fn row(from: QpState, to: QpState, rules: [Option<Rule>; 5]) -> Transition {
    Transition { from, to, rules }
}

const CONNECTED_INIT: u32 = m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS;
const UD_INIT: u32 = m::PKEY_INDEX | m::PORT | m::QKEY;
const UC_RTR: u32 = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
const RC_RTR: u32 = UC_RTR | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER;
const RTR_OPTIONAL: u32 = m::ALT_PATH | m::ACCESS_FLAGS | m::PKEY_INDEX;
const RC_RTS: u32 = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC;
const UC_LIVE: u32 = m::CUR_STATE | m::ALT_PATH | m::ACCESS_FLAGS | m::PATH_MIG_STATE;
const RC_LIVE: u32 = UC_LIVE | m::MIN_RNR_TIMER;
const UD_LIVE: u32 = m::CUR_STATE | m::QKEY;
const UC_SQD: u32 = m::AV | m::ALT_PATH | m::ACCESS_FLAGS | m::PKEY_INDEX | m::PATH_MIG_STATE;
const RC_SQD: u32 = UC_SQD
    | m::PORT
    | m::TIMEOUT
    | m::RETRY_CNT
    | m::RNR_RETRY
    | m::MAX_QP_RD_ATOMIC
    | m::MAX_DEST_RD_ATOMIC
    | m::MIN_RNR_TIMER;

/// An initiator has no receiving half, a target no sending one (annex A14).
const INI_SQD: u32 = RC_SQD & !(m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER);
const TGT_RTS: u32 = m::TIMEOUT | m::SQ_PSN;
const TGT_SQD: u32 = RC_SQD & !(m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC);

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// Transitions between states other than those to RESET and ERR, which every state has and which take no attribute.
static TRANSITIONS: &[Transition] = &[
    row(
        Reset,
        Init,
        [
            rule(CONNECTED_INIT, 0),
            rule(CONNECTED_INIT, 0),
            rule(UD_INIT, 0),
            rule(CONNECTED_INIT, 0),
            rule(CONNECTED_INIT, 0),
        ],
    ),
    row(
        Init,
        Init,
        [
            rule(0, CONNECTED_INIT),
            rule(0, CONNECTED_INIT),
            rule(0, UD_INIT),
            rule(0, CONNECTED_INIT),
            rule(0, CONNECTED_INIT),
        ],
    ),
    row(
        Init,
        Rtr,
        [
            rule(RC_RTR, RTR_OPTIONAL),
            rule(UC_RTR, RTR_OPTIONAL),
            rule(0, m::PKEY_INDEX | m::QKEY),
            rule(UC_RTR, RTR_OPTIONAL),
            rule(RC_RTR, RTR_OPTIONAL),
        ],
    ),
    row(
        Rtr,
        Rts,
        [
            rule(RC_RTS, RC_LIVE | m::RATE_LIMIT),
            rule(m::SQ_PSN, UC_LIVE | m::RATE_LIMIT),
            rule(m::SQ_PSN, UD_LIVE | m::RATE_LIMIT),
            rule(RC_RTS, UC_LIVE),
            rule(TGT_RTS, RC_LIVE),
        ],
    ),
    row(
        Rts,
        Rts,
        [
            rule(0, RC_LIVE | m::RATE_LIMIT),
            rule(0, UC_LIVE | m::RATE_LIMIT),
            rule(0, UD_LIVE | m::RATE_LIMIT),
            rule(0, UC_LIVE),
            rule(0, RC_LIVE),
        ],
    ),
    row(Rts, Sqd, [rule(0, m::EN_SQD_ASYNC_NOTIFY); 5]),
    row(
        Sqd,
        Sqd,
        [rule(0, RC_SQD), rule(0, UC_SQD), rule(0, m::PKEY_INDEX | m::QKEY), rule(0, INI_SQD), rule(0, TGT_SQD)],
    ),
    row(Sqd, Rts, [rule(0, RC_LIVE), rule(0, UC_LIVE), rule(0, UD_LIVE), rule(0, UC_LIVE), rule(0, RC_LIVE)]),
    row(Sqe, Rts, [None, rule(0, m::CUR_STATE | m::ACCESS_FLAGS), rule(0, UD_LIVE), None, None]),
];

const fn column(qp_type: QpType) -> usize {
    match qp_type {
        QpType::Rc => 0,
        QpType::Uc => 1,
        QpType::Ud => 2,
        QpType::XrcSend => 3,
        QpType::XrcRecv => 4,
    }
}

fn find(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    if matches!(to, Reset | Err) {
        return rule(0, m::CUR_STATE);
    }
    TRANSITIONS.iter().find(|row| row.from == from && row.to == to).and_then(|row| row.rules[column(qp_type)])
}

/// The attributes of `mask` that count for this service type. As in the kernel (`modify_qp_mask` of uverbs), an XRC initiator
/// ignores attributes of the receiving half, and an XRC target those of the sending half, before anything is checked:
/// perftest 4.5 and newer give both to both.
pub(crate) const fn effective_mask(qp_type: QpType, mask: u32) -> u32 {
    match qp_type {
        QpType::XrcSend => mask & !(m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER),
        QpType::XrcRecv => mask & !(m::MAX_QP_RD_ATOMIC | m::RETRY_CNT | m::RNR_RETRY),
        QpType::Rc | QpType::Uc | QpType::Ud => mask,
    }
}

/// Bits of `retry_cnt` and `rnr_retry` (IBA 11.2.5.2), and of `min_rnr_timer` (IBA table 45).
const RETRY_MASK: u8 = 7;
const RNR_TIMER_MASK: u8 = 31;

/// Whether `attr` with `mask` may be applied to a queue pair of `qp_type` in state `from`. Returns the state to move to.
pub(crate) fn check(
    qp_type: QpType,
    from: QpState,
    port_mtu: Mtu,
    attr: &QpAttr,
    mask: u32,
) -> Result<QpState, ModifyError> {
    let to = if mask & m::STATE != 0 { attr.qp_state } else { from };
    if mask & m::CUR_STATE != 0 && attr.cur_qp_state != from {
        return Result::Err(ModifyError::Transition { from: attr.cur_qp_state, to });
    }
    let rule = find(qp_type, from, to).ok_or(ModifyError::Transition { from, to })?;
    let given = mask & !m::STATE;
    if rule.required & !given != 0 {
        return Result::Err(ModifyError::Missing(rule.required & !given));
    }
    if given & !(rule.required | rule.optional) != 0 {
        return Result::Err(ModifyError::NotAllowed(given & !(rule.required | rule.optional)));
    }
    check_values(port_mtu, attr, mask)?;
    Ok(to)
}

fn check_values(port_mtu: Mtu, attr: &QpAttr, mask: u32) -> Result<(), ModifyError> {
    let bad: [(u32, bool); 7] = [
        (m::PKEY_INDEX, attr.pkey_index != 0),
        (m::PORT, attr.port_num != 1),
        (m::PATH_MTU, attr.path_mtu as u8 > port_mtu as u8),
        (m::TIMEOUT, attr.timeout > 31),
        (m::MAX_QP_RD_ATOMIC, attr.max_rd_atomic > RD_ATOMIC_MAX),
        (m::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic > RD_ATOMIC_MAX),
        (m::PATH_MIG_STATE, attr.path_mig_state > 2),
    ];
    match bad.iter().find(|(bit, out_of_range)| mask & bit != 0 && *out_of_range) {
        Some((bit, _)) => Result::Err(ModifyError::Value(*bit)),
        None => Ok(()),
    }
}

/// Copies the attributes of `mask` from `new` to `attr`; the state and the read-only ones excepted. Of counts and timers whose
/// field in the queue pair context has three or five bits, the low bits are taken, as adapters do: programs set `min_rnr_timer`
/// to 32 or `retry_cnt` to 10, and the kernel's `rxe_qp_chk_attr` does not look at them either.
pub(crate) fn apply(attr: &mut QpAttr, new: &QpAttr, mask: u32) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => {
            $(if mask & m::$bit != 0 { $(attr.$field = new.$field;)+ })+
        };
    }
    take! {
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state;
        DEST_QPN: dest_qpn;
    }
    attr.retry_cnt &= RETRY_MASK;
    attr.rnr_retry &= RETRY_MASK;
    attr.min_rnr_timer &= RNR_TIMER_MASK;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(state: QpState) -> QpAttr {
        QpAttr { qp_state: state, cur_qp_state: state, port_num: 1, ..QpAttr::default() }
    }

    #[test]
    fn each_required_attribute_is_required_and_each_other_refused() {
        for row in TRANSITIONS {
            for &qp_type in QpType::ALL {
                let a = attr(row.to);
                let try_mask = |mask| check(qp_type, row.from, Mtu::B4096, &a, mask | m::STATE);
                let Some(rule) = row.rules[column(qp_type)] else {
                    assert!(matches!(try_mask(0), Result::Err(ModifyError::Transition { .. })));
                    continue;
                };
                assert_eq!(try_mask(rule.required), Ok(row.to));
                for bit in (1..26).map(|n| 1u32 << n).filter(|bit| *bit != m::CUR_STATE) {
                    if rule.required & bit != 0 {
                        assert_eq!(try_mask(rule.required & !bit), Result::Err(ModifyError::Missing(bit)));
                    } else if rule.optional & bit == 0 {
                        assert_eq!(try_mask(rule.required | bit), Result::Err(ModifyError::NotAllowed(bit)));
                    } else {
                        assert_eq!(try_mask(rule.required | bit), Ok(row.to));
                    }
                }
            }
        }
    }

    /// The table in numbers of `enum ibv_qp_attr_mask`, written from IBA tables 91-96 and the kernel's `qp_state_table`, not from
    /// the constants above: required and optional attributes of RC, UC, UD, XRC initiator and XRC target.
    #[test]
    fn the_table_holds_the_kernels_masks() {
        const RATE: u32 = 1 << 25;
        let all = |required, optional| [Some((required, optional)); 5];
        type Masks = Option<(u32, u32)>;
        let rows: [(QpState, QpState, [Masks; 5]); 9] = [
            (Reset, Init, [Some((0x38, 0)), Some((0x38, 0)), Some((0x70, 0)), Some((0x38, 0)), Some((0x38, 0))]),
            (Init, Init, [Some((0, 0x38)), Some((0, 0x38)), Some((0, 0x70)), Some((0, 0x38)), Some((0, 0x38))]),
            (
                Init,
                Rtr,
                [
                    Some((0x12_9180, 0x4018)),
                    Some((0x10_1180, 0x4018)),
                    Some((0, 0x50)),
                    Some((0x10_1180, 0x4018)),
                    Some((0x12_9180, 0x4018)),
                ],
            ),
            (
                Rtr,
                Rts,
                [
                    Some((0x1_2e00, 0x4_c00a | RATE)),
                    Some((0x1_0000, 0x4_400a | RATE)),
                    Some((0x1_0000, 0x42 | RATE)),
                    Some((0x1_2e00, 0x4_400a)),
                    Some((0x1_0200, 0x4_c00a)),
                ],
            ),
            (
                Rts,
                Rts,
                [
                    Some((0, 0x4_c00a | RATE)),
                    Some((0, 0x4_400a | RATE)),
                    Some((0, 0x42 | RATE)),
                    Some((0, 0x4_400a)),
                    Some((0, 0x4_c00a)),
                ],
            ),
            (Rts, Sqd, all(0, 4)),
            (
                Sqd,
                Sqd,
                [Some((0, 0x6_eeb8)), Some((0, 0x4_4098)), Some((0, 0x50)), Some((0, 0x4_6eb8)), Some((0, 0x6_c2b8))],
            ),
            (
                Sqd,
                Rts,
                [Some((0, 0x4_c00a)), Some((0, 0x4_400a)), Some((0, 0x42)), Some((0, 0x4_400a)), Some((0, 0x4_c00a))],
            ),
            (Sqe, Rts, [None, Some((0, 0xa)), Some((0, 0x42)), None, None]),
        ];
        assert_eq!(TRANSITIONS.len(), rows.len());
        for (from, to, expected) in rows {
            for (qp_type, expected) in QpType::ALL.iter().map(|t| (*t, expected[column(*t)])) {
                let rule = find(qp_type, from, to).map(|rule| (rule.required, rule.optional));
                assert_eq!(rule, expected, "{qp_type:?} {from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn every_state_goes_to_reset_and_to_error() {
        for &from in QpState::ALL {
            for to in [Reset, Err] {
                assert_eq!(check(QpType::Rc, from, Mtu::B4096, &attr(to), m::STATE), Ok(to));
            }
        }
    }

    #[test]
    fn steps_cannot_be_skipped() {
        for (from, to) in [(Reset, Rtr), (Reset, Rts), (Init, Rts), (Rtr, Init), (Err, Rts), (Err, Init), (Rtr, Sqd)] {
            let got = check(QpType::Rc, from, Mtu::B4096, &attr(to), m::STATE);
            assert_eq!(got, Result::Err(ModifyError::Transition { from, to }));
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let good = attr(Rts);
        let cases = [
            (m::TIMEOUT, QpAttr { timeout: 32, ..good }),
            (m::MAX_QP_RD_ATOMIC, QpAttr { max_rd_atomic: RD_ATOMIC_MAX + 1, ..good }),
        ];
        for (bit, bad) in cases {
            assert_eq!(
                check(QpType::Rc, Rtr, Mtu::B4096, &bad, m::STATE | RC_RTS),
                Result::Err(ModifyError::Value(bit))
            );
        }
    }

    #[test]
    fn of_counts_and_timers_the_low_bits_are_taken() {
        let wanted = QpAttr { retry_cnt: 10, rnr_retry: 15, min_rnr_timer: 0x20, ..attr(Rts) };
        let mask = m::RETRY_CNT | m::RNR_RETRY | m::MIN_RNR_TIMER;
        assert_eq!(check_values(Mtu::B1024, &wanted, mask), Ok(()));
        let mut taken = attr(Rts);
        apply(&mut taken, &wanted, mask);
        assert_eq!((taken.retry_cnt, taken.rnr_retry, taken.min_rnr_timer), (2, 7, 0));
    }

    #[test]
    fn a_value_is_good_up_to_its_limit_and_refused_above() {
        type Set = fn(&mut QpAttr, u8);
        let limits: [(u32, u8, Set); 5] = [
            (m::PATH_MTU, Mtu::B1024 as u8, |a, v| {
                a.path_mtu = *Mtu::ALL.iter().find(|mtu| **mtu as u8 == v).expect("an MTU")
            }),
            (m::TIMEOUT, 31, |a, v| a.timeout = v),
            (m::MAX_QP_RD_ATOMIC, RD_ATOMIC_MAX, |a, v| a.max_rd_atomic = v),
            (m::MAX_DEST_RD_ATOMIC, RD_ATOMIC_MAX, |a, v| a.max_dest_rd_atomic = v),
            (m::PATH_MIG_STATE, 2, |a, v| a.path_mig_state = v),
        ];
        for (bit, most, set) in limits {
            let good = QpAttr { path_mtu: Mtu::B256, ..attr(Rts) };
            let verdict = |value, mask| {
                let mut attr = good;
                set(&mut attr, value);
                check_values(Mtu::B1024, &attr, mask)
            };
            assert_eq!((verdict(most - 1, bit), verdict(most, bit)), (Ok(()), Ok(())), "{bit:#x}");
            for above in [most + 1, most + 2] {
                assert_eq!(verdict(above, bit), Result::Err(ModifyError::Value(bit)));
                assert_eq!(verdict(above, !bit), Ok(()), "an attribute that is not set");
            }
        }
        for bad in [
            QpAttr { pkey_index: 1, ..attr(Rts) },
            QpAttr { port_num: 0, ..attr(Rts) },
            QpAttr { port_num: 2, ..attr(Rts) },
        ] {
            let bit = if bad.pkey_index == 0 { m::PORT } else { m::PKEY_INDEX };
            assert_eq!(check_values(Mtu::B4096, &bad, u32::MAX), Result::Err(ModifyError::Value(bit)));
        }
    }

    #[test]
    fn xrc_ignores_attributes_of_the_half_that_it_lacks() {
        let (receiving, sending) =
            (m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER, m::MAX_QP_RD_ATOMIC | m::RETRY_CNT | m::RNR_RETRY);
        assert_eq!(effective_mask(QpType::XrcSend, u32::MAX), !receiving);
        assert_eq!(effective_mask(QpType::XrcRecv, u32::MAX), !sending);
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            assert_eq!(effective_mask(qp_type, u32::MAX), u32::MAX);
        }
    }

    #[test]
    fn a_wrong_current_state_is_refused() {
        let a = QpAttr { cur_qp_state: Rtr, ..attr(Rts) };
        assert!(check(QpType::Ud, Rts, Mtu::B4096, &a, m::STATE | m::CUR_STATE).is_err());
    }
}
