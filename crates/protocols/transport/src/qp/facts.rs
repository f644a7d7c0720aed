//! What a queue pair knows of itself, for a record of its failure or of its present state.

use crate::failure::QpFacts;
use crate::qp::Qp;
use crate::qp_shared::QpShared;

impl Qp {
    /// What it knows of itself.
    pub fn facts(&self) -> QpFacts {
        let QpShared { attr, id, .. } = &self.shared;
        QpFacts {
            qpn: id.qpn,
            qp_type: id.qp_type,
            state: self.shared.state,
            dest_qpn: self.shared.dest_qpn,
            flow: self.shared.flow,
            mtu: self.shared.mtu,
            port_mtu: id.port_mtu.bytes(),
            first_psn: attr.sq_psn,
            una_psn: self.req.recovery.una_psn(),
            sent_psn: self.req.recovery.sent_psn(),
            first_expected_psn: attr.rq_psn,
            expected_psn: self.resp.expected,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            ack_timeout: self.shared.ack_timeout(),
            timeout: attr.timeout,
            rtt: self.req.sel.rtt.smoothed(),
            is_selective: self.req.sel.active,
            requests: self.req.sq.taken(),
        }
    }
}
