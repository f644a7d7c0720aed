//! Tombstones of queue pairs that died with the predecessor of this process.
//!
//! Each worker has a tombstone file ([`TombstoneFile`]) with two descriptors, which the supervisor keeps. The successor's
//! worker of the same number reads it, answers the peers of the dead queue pairs, and goes on with the file.

use crate::lent::tombstone_names;
use burst_base::Nanos;
use burst_engine::Worker;
use burst_engine::qpn::QpnSpace;
use burst_engine::tombstone_file::TombstoneFile;
use burst_port::DescriptorStore;

/// Gives a worker the tombstones of its predecessor and a file for its own. The numbers of the dead queue pairs are not given
/// out for a while.
///
/// # Errors
/// A sentence when there can be no file.
pub fn adopt_tombstones(
    store: &dyn DescriptorStore,
    now: Nanos,
    worker: &mut Worker,
    qpns: &mut QpnSpace,
) -> Result<(), String> {
    let names = tombstone_names(worker.id());
    let file = match store.take(&names[0]) {
        Some(records) => TombstoneFile::from_fds(records, store.take(&names[1])),
        None => TombstoneFile::create(),
    };
    let file = file.map_err(|e| format!("cannot make a tombstone file: {e}"))?;
    store.store(&names[0], file.records_fd());
    if let Some(psns) = file.psns_fd() {
        store.store(&names[1], psns);
    }
    let stones = worker.adopt_tombstones(now, file).map_err(|e| format!("cannot read the tombstone file: {e}"))?;
    if !stones.is_empty() {
        tracing::info!(
            worker = worker.id(),
            dead = stones.len(),
            "answering for queue pairs that died with the daemon"
        );
    }
    stones.iter().for_each(|qpn| qpns.avoid(*qpn));
    Ok(())
}
