//! The control socket's file, for daemons: bound, and removed.

pub use burst_control::listener::bind_socket;
use std::path::Path;

/// Removes the socket file.
pub fn remove_socket(path: &Path) {
    if let Err(e) = std::fs::remove_file(path) {
        tracing::warn!("cannot remove {}: {e}", path.display());
    }
}
