//! Connections and listeners as they are, for those who look on.

use crate::api::PathRecord;
use crate::conn::CmState;
use crate::machine::{Cm, Listener};
use burst_base::Nanos;

/// A connection, or a datagram service request, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct ConnView<'a, O> {
    /// Whose; `None` when its owner has gone.
    pub owner: Option<&'a O>,
    /// Where it is.
    pub state: CmState,
    /// Device and addresses.
    pub path: PathRecord,
    /// Communication ids, ours and the peer's.
    pub ids: (u32, u32),
    /// Queue pair numbers, ours and the peer's.
    pub qpns: (u32, u32),
    /// What was asked for.
    pub service_id: u64,
    /// When it took its last step.
    pub stepped: Nanos,
}

impl<O> Cm<O> {
    /// Shows up to `most` connections, from place `from` of the table on; the place to go on from, unless that was all.
    /// Connections that come or go between two calls may be missed, none is shown twice.
    pub fn view(&mut self, from: u32, most: usize, mut see: impl FnMut(&ConnView<'_, O>)) -> Option<u32> {
        let mut slot = from;
        for _ in 0..most {
            slot = self.table.next_slot(slot)?;
            if let Some((id, conn)) = self.table.at_mut(slot) {
                see(&ConnView {
                    owner: conn.owner.as_ref(),
                    state: conn.state,
                    path: conn.path,
                    ids: (id, conn.remote_id),
                    qpns: (conn.local_qpn, conn.conn.remote_qpn),
                    service_id: conn.service_id,
                    stepped: conn.stepped,
                });
            }
            slot += 1;
        }
        self.table.next_slot(slot)
    }

    /// All listeners.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener<O>> {
        self.listeners.values().flatten()
    }
}
