//! Read access to connections and listeners, for `burst cm`.

use crate::api::PathRecord;
use crate::conn::CmState;
use crate::machine::{Cm, Listener};
use burst_base::Nanos;

/// A snapshot of a connection or datagram service request.
#[derive(Clone, Copy, Debug)]
pub struct ConnView<'a, O> {
    /// Owner; `None` when it has ended.
    pub owner: Option<&'a O>,
    /// State.
    pub state: CmState,
    /// Device and addresses.
    pub path: PathRecord,
    /// Communication id of this end.
    pub comm_id: u32,
    /// Communication id of the peer; 0 until it is known.
    pub peer_comm_id: u32,
    /// Queue pair number of this end; 0 until it is known.
    pub qpn: u32,
    /// Queue pair number of the peer; 0 until it is known.
    pub peer_qpn: u32,
    /// Service id.
    pub service_id: u64,
    /// Time of its last step.
    pub stepped: Nanos,
}

impl<O> Cm<O> {
    /// Passes up to `most` connections to `see`, from slot `from` of the table on. Returns the slot to continue from, or `None`
    /// at the end.
    /// Connections that begin or end between two calls may be missed; none is passed twice.
    pub fn view(&mut self, from: u32, most: usize, mut see: impl FnMut(&ConnView<'_, O>)) -> Option<u32> {
        let mut slot = from;
        for _ in 0..most {
            slot = self.table.next_slot(slot)?;
            if let Some((id, conn)) = self.table.at_mut(slot) {
                see(&ConnView {
                    owner: conn.owner.as_ref(),
                    state: conn.state,
                    path: conn.path,
                    comm_id: id,
                    peer_comm_id: conn.remote_id,
                    qpn: conn.local_qpn,
                    peer_qpn: conn.conn.remote_qpn,
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
