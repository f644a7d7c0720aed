//! Host files: what programs look for outside the library, in `/dev/infiniband` and `/sys/class/infiniband`.
//!
//! UCX and others drop a device without a character node `/dev/infiniband/NAME`; UCX, NCCL, Mooncake and scripts read
//! GID types, interfaces, topology and counters from `/sys/class/infiniband`. A kernel driver would make these; here
//!
//! * `burst run` makes them for its program alone, in a mount namespace ([`private`]);
//! * `burst host-files on` makes them for the whole host, `off` undoes it ([`system`]).
//!
//! Both write the same tree ([`tree`]), a picture of the devices at that moment, and lay it over `/sys/class` by
//! overlayfs: everything else below stays the kernel's own and alive. The character node is `/dev/full` under another
//! name (1,7): it can be opened, and a library that mistakes it for the kernel's gets errors from every write.
//! `/sys/class/infiniband_verbs` and `/dev/infiniband/rdma_cm` are left out: with them the real libraries, which some
//! programs carry inside, would find a device that they have no driver for.

pub mod private;
pub mod system;
mod tree;

use burst_client::Daemon;
use burst_control::{Counter, DeviceInfo, socket_path};
use rustix::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Directory of the character nodes.
const NODES: &str = "/dev/infiniband";
/// Directory that the tree is laid over.
const CLASSES: &str = "/sys/class";
/// Name of our mounts in the kernel's table.
const MOUNT_NAME: &str = "burst";

/// The contents of the host files.
pub struct Picture {
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// Their counters.
    pub counters: Vec<Counter>,
}

impl Picture {
    /// Asks the daemon.
    ///
    /// # Errors
    /// A sentence.
    pub fn take(client: &mut Daemon) -> Result<Picture, String> {
        let devices = crate::ls::devices(client)?;
        Ok(Picture { devices, counters: client.counters().map_err(|e| e.to_string())? })
    }

    /// Names of the character nodes.
    fn nodes(&self) -> impl Iterator<Item = String> {
        self.devices.iter().map(|d| socket_path::device_node(&d.name))
    }

    /// Whether this process sees all of it already.
    fn is_shown(&self) -> bool {
        let classes = Path::new(CLASSES);
        self.nodes().all(|node| is_character_node(&Path::new(NODES).join(node)))
            && self.devices.iter().all(|d| tree::shows(&classes.join("infiniband").join(&d.name), d))
    }
}

fn is_character_node(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.file_type().is_char_device())
}

/// A sentence about a step that failed.
fn failed<E: std::fmt::Display>(step: &str, path: &Path) -> impl FnOnce(E) -> String {
    move |error| format!("cannot {step} {}: {error}", path.display())
}

/// Lays the written tree over `/sys/class`.
fn overlay_classes(tree: &Path) -> Result<(), String> {
    let classes = Path::new(CLASSES);
    let options = format!("lowerdir={}:{CLASSES}", tree.display());
    let options = std::ffi::CString::new(options).map_err(|e| e.to_string())?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount(MOUNT_NAME, classes, "overlay", flags, options.as_c_str())
        .map_err(failed("mount an overlay on", classes))
}

/// The node that the others are copies of.
fn full_node() -> PathBuf {
    PathBuf::from("/dev/full")
}

/// Device number of `/dev/full`.
fn full_number() -> (FileType, u64) {
    (FileType::CharacterDevice, rustix::fs::makedev(1, 7))
}
