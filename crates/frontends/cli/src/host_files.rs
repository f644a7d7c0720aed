//! Host files: the files in `/dev/infiniband` and `/sys/class/infiniband` that some programs read besides calling the library.
//!
//! UCX and others ignore a device without a character node `/dev/infiniband/NAME`; UCX, NCCL, Mooncake and scripts read
//! GID types, interfaces, topology and counters from `/sys/class/infiniband`. A kernel driver makes these files; Burst has none:
//!
//! * `burst run` makes them for its program alone, in a mount namespace ([`private`]);
//! * `burst host-files on` makes them for the whole host, `off` removes them ([`system`]).
//!
//! Both write the same tree ([`tree`]), a snapshot of the devices, and mount it over `/sys/class` by overlayfs; all other files
//! there stay the kernel's. The character node has the device number of `/dev/full` (1,7): it can be opened, and a library
//! that takes it for the kernel's gets an error from every write. `/sys/class/infiniband_verbs` and `/dev/infiniband/rdma_cm`
//! are left out: with them a copy of rdma-core that a program contains would find a device for which it has no driver.

mod counters;
mod directory;
pub mod private;
pub mod system;
mod tree;

use burst_client::Daemon;
use burst_control::{Counter, DeviceInfo, socket_path};
use directory::OpenDirectory;
use rustix::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Directory of the character nodes.
const NODES: &str = "/dev/infiniband";
/// Directory over which the tree is mounted.
const CLASSES: &str = "/sys/class";
/// Directory of the devices, below it.
const DEVICES: &str = "infiniband";
/// Name of Burst's mounts in the kernel's table.
const MOUNT_NAME: &str = "burst";

/// The contents of the host files.
pub struct DeviceSnapshot {
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// Counters of the devices.
    pub counters: Vec<Counter>,
}

impl DeviceSnapshot {
    /// Gets devices and counters from the daemon.
    ///
    /// # Errors
    /// A sentence.
    pub fn take(client: &mut Daemon) -> Result<DeviceSnapshot, String> {
        let devices = crate::ls::devices(client)?;
        Ok(DeviceSnapshot { devices, counters: client.counters().map_err(|e| e.to_string())? })
    }

    /// Names of the character nodes.
    fn nodes(&self) -> impl Iterator<Item = String> {
        self.devices.iter().map(|d| socket_path::device_node(&d.name))
    }

    /// Whether this process sees all these files already.
    fn is_shown(&self) -> bool {
        let classes = Path::new(CLASSES);
        self.nodes().all(|node| is_character_node(&Path::new(NODES).join(node)))
            && self.devices.iter().all(|d| tree::shows(&classes.join(DEVICES).join(&d.name), d))
    }

    /// Whether this process sees no devices beside these.
    fn is_alone(&self) -> bool {
        let ours: Vec<String> = self.nodes().chain(self.devices.iter().map(|d| d.name.clone())).collect();
        let places = [PathBuf::from(NODES), Path::new(CLASSES).join(DEVICES)];
        let entries = places.iter().filter_map(|place| place.read_dir().ok()).flatten().flatten();
        entries.map(|entry| entry.file_name()).all(|name| ours.iter().any(|one| name == one.as_str()))
    }
}

fn is_character_node(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.file_type().is_char_device())
}

/// Makes the sentence for a step that failed.
fn failed<E: std::fmt::Display>(step: &str, path: &Path) -> impl FnOnce(E) -> String {
    move |error| format!("cannot {step} {}: {error}", path.display())
}

/// Mounts the written tree over `/sys/class`.
fn overlay_classes(tree: &OpenDirectory) -> Result<(), String> {
    let classes = Path::new(CLASSES);
    let options = format!("lowerdir={}:{CLASSES}", tree.path().display());
    let options = std::ffi::CString::new(options).map_err(|e| e.to_string())?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount(MOUNT_NAME, classes, "overlay", flags, options.as_c_str())
        .map_err(failed("mount an overlay on", classes))
}

/// The device whose number the character nodes have.
fn full_node() -> PathBuf {
    PathBuf::from("/dev/full")
}

/// Device number of `/dev/full`.
fn full_number() -> (FileType, u64) {
    (FileType::CharacterDevice, rustix::fs::makedev(1, 7))
}
