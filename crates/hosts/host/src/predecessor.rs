//! Tombstones of queue pairs that died with the predecessor of this process.
//!
//! Each worker has a tombstone file ([`TombstoneFile`]), which the supervisor keeps. The successor's worker of the same number
//! reads it, answers the peers of the dead queue pairs, and goes on with the file.

use burst_base::Nanos;
use burst_engine::Worker;
use burst_engine::qpn::QpnSpace;
use burst_engine::tombstone_file::TombstoneFile;
use burst_port::DescriptorStore;
use std::os::fd::AsFd;

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
    let name = format!("tombstones {}", worker.id());
    let file = match store.take(&name) {
        Some(fd) => TombstoneFile::from_fd(fd),
        None => {
            let file = TombstoneFile::create().map_err(|e| format!("cannot make a tombstone file: {e}"))?;
            store.store(&name, file.as_fd());
            file
        }
    };
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
