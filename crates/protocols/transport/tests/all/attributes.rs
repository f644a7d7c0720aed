//! Values at the edge of what `ibv_modify_qp` allows: each row of the table in `docs/attributes.md`, which compares other stacks.

use crate::common::{End, Setup};
use burst_base::verbs::{Mtu, QpAttr, QpState, attr_mask as m};
use burst_transport::ModifyError;
use std::path::PathBuf;

/// A row: step, attribute, value, what Burst does.
struct Row {
    step: QpState,
    attribute: String,
    value: u8,
    expected: Result<u8, u32>,
}

fn rows() -> Vec<Row> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs/attributes.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    let row = |cells: Vec<String>| {
        let step = match cells.get(1).map(String::as_str) {
            Some("INIT") => QpState::Init,
            Some("RTR") => QpState::Rtr,
            Some("RTS") => QpState::Rts,
            _ => return None,
        };
        let expected = match cells[6].as_str() {
            "EINVAL" => Err(bit_of(&cells[2])),
            stored => Ok(stored.parse().expect("a value or EINVAL")),
        };
        Some(Row { step, attribute: cells[2].clone(), value: cells[3].parse().expect("a value"), expected })
    };
    page.lines().filter_map(|line| row(cells(line))).collect()
}

fn bit_of(attribute: &str) -> u32 {
    match attribute {
        "pkey_index" => m::PKEY_INDEX,
        "port_num" => m::PORT,
        "path_mtu" => m::PATH_MTU,
        "max_dest_rd_atomic" => m::MAX_DEST_RD_ATOMIC,
        "min_rnr_timer" => m::MIN_RNR_TIMER,
        "timeout" => m::TIMEOUT,
        "retry_cnt" => m::RETRY_CNT,
        "rnr_retry" => m::RNR_RETRY,
        "max_rd_atomic" => m::MAX_QP_RD_ATOMIC,
        "path_mig_state" => m::PATH_MIG_STATE,
        other => panic!("{other}: an attribute that this test does not know"),
    }
}

fn set(attr: &mut QpAttr, attribute: &str, value: u8) {
    match attribute {
        "pkey_index" => attr.pkey_index = value.into(),
        "port_num" => attr.port_num = value,
        "path_mtu" => attr.path_mtu = Mtu::ALL[usize::from(value) - 1],
        "max_dest_rd_atomic" => attr.max_dest_rd_atomic = value,
        "min_rnr_timer" => attr.min_rnr_timer = value,
        "timeout" => attr.timeout = value,
        "retry_cnt" => attr.retry_cnt = value,
        "rnr_retry" => attr.rnr_retry = value,
        "max_rd_atomic" => attr.max_rd_atomic = value,
        _ => attr.path_mig_state = value,
    }
}

fn get(attr: &QpAttr, attribute: &str) -> u8 {
    match attribute {
        "pkey_index" => attr.pkey_index as u8,
        "port_num" => attr.port_num,
        "path_mtu" => attr.path_mtu as u8,
        "max_dest_rd_atomic" => attr.max_dest_rd_atomic,
        "min_rnr_timer" => attr.min_rnr_timer,
        "timeout" => attr.timeout,
        "retry_cnt" => attr.retry_cnt,
        "rnr_retry" => attr.rnr_retry,
        "max_rd_atomic" => attr.max_rd_atomic,
        _ => attr.path_mig_state,
    }
}

/// The transition to a state, with all attributes that it needs, and one more where that is optional.
fn transition(row: &Row, setup: &Setup) -> (QpAttr, u32) {
    let mut attr = QpAttr { qp_state: row.step, path_mtu: setup.mtu, ..setup.attr };
    set(&mut attr, &row.attribute, row.value);
    let needed = match row.step {
        QpState::Init => m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS,
        QpState::Rtr => m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER,
        _ => m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC,
    };
    (attr, m::STATE | needed | bit_of(&row.attribute))
}

#[test]
fn each_row_of_the_page_is_true() {
    let (rows, setup) = (rows(), Setup::default());
    assert!(rows.len() >= 26, "{} rows", rows.len());
    for row in rows {
        let mut end = End::new(0, &setup);
        match row.step {
            QpState::Init => {}
            QpState::Rtr => end.bring_up(1, &setup, QpState::Init),
            _ => end.bring_up(1, &setup, QpState::Rtr),
        }
        let (attr, mask) = transition(&row, &setup);
        let before = end.qp.state();
        let result = end.modify(&attr, mask, 1).map(|()| get(&end.qp.query(), &row.attribute));
        let expected = row.expected.map_err(ModifyError::Value);
        assert_eq!(result, expected, "{} {}", row.attribute, row.value);
        assert_eq!(end.qp.state(), if expected.is_ok() { row.step } else { before }, "{}", row.attribute);
    }
}
