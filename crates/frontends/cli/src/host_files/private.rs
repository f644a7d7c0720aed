//! Host files for one program, in a mount namespace of the program and its children.
//!
//! Without root the program also gets a user namespace, which maps this user only. In it set-user-ID programs and files of other
//! users cannot be used; `--no-host-files` avoids that. Later mounts of the host are seen in the namespace (its tree is a slave);
//! mounts of the program are not seen outside.
//!
//! `/dev` may have no directory `infiniband`, and none can be made for a single program. So `/dev` is replaced by a directory
//! with bind mounts of all old entries and a new entry. This directory and the tree for `/sys/class` are made in a small tmpfs
//! that covers `/tmp` meanwhile.
//!
//! Devices of the kernel are hidden: cloud machines carry some that do not work (Azure's `mana_0`), and a program that looks for
//! devices in these directories may take them. Burst's library could not open them in any case.

use super::directory::OpenDirectory;
use super::{CLASSES, DEVICES, DeviceSnapshot, MOUNT_NAME, NODES, failed, full_node, overlay_classes, tree};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Directory that the tmpfs covers while the files are made.
const SCRATCH: &str = "/tmp";

/// Classes of files that the kernel has for each of its devices, beside the device's own.
const OF_KERNEL_DEVICES: [&str; 3] = ["infiniband_verbs", "infiniband_mad", "infiniband_cm"];

/// Moves this process to namespaces with the host files and no other devices, unless it sees just these already. The process must
/// have one thread.
///
/// # Errors
/// A sentence. The process can go on: it may be in new namespaces, but no mount is half done.
pub fn enter(snapshot: &DeviceSnapshot) -> Result<(), String> {
    if snapshot.is_shown() && snapshot.is_alone() {
        return Ok(());
    }
    leave_the_host()?;
    let scratch = Path::new(SCRATCH);
    rustix::mount::mount(MOUNT_NAME, scratch, "tmpfs", MountFlags::NOSUID, c"mode=0755")
        .map_err(failed("mount a tmpfs on", scratch))?;
    let made = make(snapshot, scratch);
    let uncovered = rustix::mount::unmount(scratch, UnmountFlags::DETACH).map_err(failed("uncover", scratch));
    made.and(uncovered)
}

/// Enters new namespaces whose mounts do not propagate to the host.
fn leave_the_host() -> Result<(), String> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() {
        unshare(rustix::thread::UnshareFlags::NEWNS)?;
    } else {
        unshare(rustix::thread::UnshareFlags::NEWUSER | rustix::thread::UnshareFlags::NEWNS)?;
        let maps = [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("{uid} {uid} 1")),
            ("/proc/self/gid_map", format!("{gid} {gid} 1")),
        ];
        for (path, line) in maps {
            fs::write(path, line).map_err(failed("write", Path::new(path)))?;
        }
    }
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", slave).map_err(|e| format!("cannot make the mounts private: {e}"))
}

#[allow(unsafe_code)]
fn unshare(what: rustix::thread::UnshareFlags) -> Result<(), String> {
    // SAFETY: descriptors are shared with no further process (no FILES flag), and this process has no other thread.
    unsafe { rustix::thread::unshare_unsafe(what) }.map_err(|e| format!("the kernel refuses a namespace: {e}"))
}

fn make(snapshot: &DeviceSnapshot, scratch: &Path) -> Result<(), String> {
    let classes = OpenDirectory::open(scratch).and_then(|directory| directory.enter("class"));
    let classes = classes.map_err(failed("make a directory in", scratch))?;
    tree::write(&classes, &snapshot.devices, &snapshot.counters)
        .map_err(failed("write the files for", Path::new(CLASSES)))?;
    let nodes = Path::new(NODES);
    let stage = scratch.join("dev");
    if nodes.is_dir() {
        bind_nodes(snapshot, &stage)?;
        bind(&stage, nodes)?;
    } else {
        let dev = Path::new("/dev");
        copy_bound(dev, &stage)?;
        bind_nodes(snapshot, &stage.join("infiniband"))?;
        bind(&stage, dev)?;
    }
    // The overlay would unite the kernel's directories with ours.
    let kernel = |class: &&str| Path::new(CLASSES).join(class).is_dir();
    let (has_devices, others) =
        (kernel(&DEVICES), OF_KERNEL_DEVICES.iter().filter(|class| kernel(class)).collect::<Vec<_>>());
    overlay_classes(&classes)?;
    if has_devices {
        bind(&scratch.join("class").join(DEVICES), &Path::new(CLASSES).join(DEVICES))?;
    }
    let nothing = scratch.join("nothing");
    fs::create_dir(&nothing).map_err(failed("make", &nothing))?;
    others.iter().try_for_each(|class| bind(&nothing, &Path::new(CLASSES).join(class)))
}

/// Makes `stage` a directory with bind mounts of all entries of `from`.
fn copy_bound(from: &Path, stage: &Path) -> Result<(), String> {
    fs::create_dir(stage).map_err(failed("make", stage))?;
    for entry in fs::read_dir(from).map_err(failed("read", from))? {
        let entry = entry.map_err(failed("read", from))?;
        let (old, new) = (entry.path(), stage.join(entry.file_name()));
        match bind_entry(&old, &new) {
            // The entry was removed after the directory was read.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            done => done.map_err(failed("bind", &old))?,
        }
    }
    Ok(())
}

fn bind_entry(old: &Path, new: &Path) -> std::io::Result<()> {
    let kind = old.symlink_metadata()?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(old)?, new);
    }
    if kind.is_dir() {
        fs::create_dir(new)?;
    } else {
        fs::File::create(new)?;
    }
    Ok(rustix::mount::mount_bind_recursive(old, new)?)
}

fn bind_nodes(snapshot: &DeviceSnapshot, directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(failed("make", directory))?;
    for node in snapshot.nodes().map(|n| directory.join(n)).filter(|n| !super::is_character_node(n)) {
        fs::File::create(&node).map_err(failed("make", &node))?;
        bind(&full_node(), &node)?;
    }
    Ok(())
}

fn bind(from: &Path, to: &Path) -> Result<(), String> {
    rustix::mount::mount_bind_recursive(from, to).map_err(failed("bind to", to))
}
