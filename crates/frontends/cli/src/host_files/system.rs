//! `burst host-files on|off`: host files for every program of the host, by root.
//!
//! The tree is written to [`KEPT`] and mounted over `/sys/class`; character nodes are made in `/dev/infiniband`. A list beside
//! the tree names the files made in `/dev`, so that `off` removes these only. `on` first does what `off` does, so it can be
//! repeated to show the present devices. The list is written before the files that it names are made, so `off` finds them after
//! a crash.

use super::counters::{LIFESPAN, LIFESPAN_MS};
use super::directory::OpenDirectory;
use super::{CLASSES, DeviceSnapshot, MOUNT_NAME, NODES, failed, full_number, overlay_classes, tree};
use burst_control::names::is_file_name;
use clap::{Arg, ArgMatches, Command};
use rustix::fs::{CWD, Mode};
use rustix::mount::UnmountFlags;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Directory of the tree and the list. A daemon's user may own `/run/burst`, but not this directory.
const KEPT: &str = "/run/burst/host-files";
/// Bounds of the time between two rewrites, in milliseconds, as the kernel's.
const LIFESPAN_MS_MIN: u64 = 10;
/// See above.
const LIFESPAN_MS_MAX: u64 = 10_000;
/// Name of the list in [`KEPT`].
const LIST: &str = "made";

/// The command line.
pub fn command() -> Command {
    Command::new("host-files")
        .about("Show the devices in /sys/class/infiniband and /dev/infiniband to every program of this host (root)")
        .long_about(
            "Show the devices in /sys/class/infiniband and /dev/infiniband to every program of this host (root).\n\n\
             `burst run` does this for its program alone and needs neither this command nor root. The files show the \
             devices as they were at `on`; repeat it after a change. With --live the counters are kept up to date. \
             `off` undoes it completely.",
        )
        .arg(
            Arg::new("live")
                .long("live")
                .action(clap::ArgAction::SetTrue)
                .help("With `on`: go on, and write the counters anew every `lifespan` milliseconds, a file beside them, until stopped"),
        )
        .arg(Arg::new("what").value_name("on|off").required(true).value_parser(["on", "off"]))
        .arg(crate::socket())
}

/// Runs the command.
pub fn host_files(matches: &ArgMatches) -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        return crate::fail("host-files changes the whole host and needs root; burst run needs neither");
    }
    let done = match (matches.get_one::<String>("what").map(String::as_str), matches.get_flag("live")) {
        (Some("on"), false) => on(matches).map(drop),
        (Some("on"), true) => on(matches).and_then(|shown| keep_alive(matches, shown)),
        (_, false) => off(),
        (_, true) => return crate::fail("--live goes with on: burst host-files on --live"),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => crate::fail(sentence),
    }
}

/// Shows the files; returns the directory of the tree and what it shows.
fn on(matches: &ArgMatches) -> Result<(OpenDirectory, DeviceSnapshot), String> {
    let mut client = crate::sockets::connect(crate::chosen_socket(matches).as_deref())?;
    let snapshot = DeviceSnapshot::take(&mut client)?;
    off()?;
    let made = show(&snapshot);
    if made.is_err() {
        off()?;
    }
    Ok((made?, snapshot))
}

/// Writes the counters anew, for ever, while the tree is that of this process. A daemon that is gone for a while is waited for.
fn keep_alive(matches: &ArgMatches, (classes, mut snapshot): (OpenDirectory, DeviceSnapshot)) -> Result<(), String> {
    let mut daemon = None;
    loop {
        std::thread::sleep(lifespan(&snapshot));
        if !overlay_is_on_top()? {
            return Err("the host files were removed, or shown anew, meanwhile".into());
        }
        if daemon.is_none() {
            daemon = crate::sockets::connect(crate::chosen_socket(matches).as_deref()).ok();
        }
        let Some(client) = &mut daemon else { continue };
        match client.counters() {
            Ok(counters) => snapshot.counters = counters,
            Err(_) => {
                daemon = None;
                continue;
            }
        }
        let rewritten = tree::rewrite_counters(&classes, &snapshot.devices, &snapshot.counters);
        rewritten.map_err(failed("write the counters in", Path::new(KEPT)))?;
    }
}

/// The time that the first device's file says, within the kernel's bounds.
fn lifespan(snapshot: &DeviceSnapshot) -> Duration {
    let path = |name: &str| Path::new(CLASSES).join("infiniband").join(name).join("ports/1/hw_counters").join(LIFESPAN);
    let read = snapshot.devices.first().and_then(|device| fs::read_to_string(path(&device.name)).ok());
    let ms = read.and_then(|text| text.trim().parse().ok()).unwrap_or(LIFESPAN_MS);
    Duration::from_millis(ms.clamp(LIFESPAN_MS_MIN, LIFESPAN_MS_MAX))
}

/// Makes everything; returns the directory of the tree.
fn show(snapshot: &DeviceSnapshot) -> Result<OpenDirectory, String> {
    let kept = Path::new(KEPT);
    let directory = make_kept().map_err(failed("make", kept))?;
    let classes = directory.enter("class").map_err(failed("make a directory in", kept))?;
    tree::write(&classes, &snapshot.devices, &snapshot.counters).map_err(failed("write the tree in", kept))?;
    let nodes = Path::new(NODES);
    let mut made: Vec<PathBuf> = snapshot.nodes().map(|n| nodes.join(n)).filter(|n| !n.exists()).collect();
    if !nodes.exists() {
        made.push(nodes.to_owned());
    }
    let list: Vec<String> = made.iter().map(|p| p.display().to_string()).collect();
    directory.put(LIST, &list.join("\n")).map_err(failed("write the list in", kept))?;
    fs::create_dir_all(nodes).map_err(failed("make", nodes))?;
    for node in made.iter().filter(|n| *n != nodes) {
        let (kind, number) = full_number();
        rustix::fs::mknodat(CWD, node, kind, Mode::from_raw_mode(0o666), number).map_err(failed("make", node))?;
        // Without the umask: all users may use the device.
        fs::set_permissions(node, fs::Permissions::from_mode(0o666)).map_err(failed("open to all", node))?;
    }
    overlay_classes(&classes)?;
    Ok(classes)
}

fn off() -> Result<(), String> {
    let (kept, classes) = (Path::new(KEPT), Path::new(CLASSES));
    while overlay_is_on_top()? {
        rustix::mount::unmount(classes, UnmountFlags::DETACH).map_err(failed("unmount", classes))?;
    }
    let list = match read_list() {
        Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(failed("read the list in", kept))?,
    };
    for path in list.lines().filter(|line| is_node(line)).map(Path::new) {
        remove_made(path).map_err(failed("remove", path))?;
    }
    absent_is_fine(fs::remove_dir_all(kept)).map_err(failed("remove", kept))?;
    // Remove the parent directory as well, unless it has a daemon's socket.
    kept.parent().map_or(Ok(()), |above| remove_made(above).map_err(failed("remove", above)))
}

/// Makes [`KEPT`], in directories that this process has opened.
fn make_kept() -> io::Result<OpenDirectory> {
    let kept = OpenDirectory::open(Path::new("/run"))?.enter("burst")?.enter("host-files")?;
    kept.check_own()?;
    Ok(kept)
}

/// Reads the list, if the directory is this user's: otherwise anybody could name files to remove.
fn read_list() -> io::Result<String> {
    let kept = OpenDirectory::open(Path::new(KEPT))?;
    kept.check_own()?;
    let mut list = String::new();
    kept.read(LIST)?.read_to_string(&mut list)?;
    Ok(list)
}

/// Whether a line of the list names a node, or the directory of the nodes.
fn is_node(line: &str) -> bool {
    line == NODES || line.strip_prefix(NODES).and_then(|rest| rest.strip_prefix('/')).is_some_and(is_file_name)
}

fn remove_made(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => match fs::remove_dir(path) {
            // Another program has made a file there.
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            done => done,
        },
        Ok(_) => fs::remove_file(path),
        Err(e) => absent_is_fine(Err(e)),
    }
}

fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

/// Whether `/sys/class` is covered by an overlay of Burst.
fn overlay_is_on_top() -> Result<bool, String> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(table).map_err(failed("read", table))?;
    Ok(last_mount_is_ours(&text))
}

/// Reads lines of `mountinfo`: fields, `-`, file system type, source, options (proc(5)).
fn last_mount_is_ours(mountinfo: &str) -> bool {
    let mut on_classes = mountinfo.lines().filter(|line| line.split(' ').nth(4) == Some(CLASSES));
    on_classes.next_back().and_then(|line| line.split_once(" - ")).is_some_and(|(_, rest)| {
        let mut words = rest.split(' ');
        (words.next(), words.next()) == (Some("overlay"), Some(MOUNT_NAME))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_are_removed() {
        assert!(is_node("/dev/infiniband") && is_node("/dev/infiniband/uverbs_burst0"));
        for other in ["/dev/infiniband/", "/dev/infiniband/../null", "/etc/passwd", "/dev/infiniband2/x", ""] {
            assert!(!is_node(other), "{other:?}");
        }
    }

    #[test]
    fn only_our_own_overlay_on_top_is_unmounted() {
        let sysfs = "22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n";
        let ours = "90 22 0:61 / /sys/class rw,relatime shared:1 - overlay burst rw,lowerdir=/run/x:/sys/class\n";
        let other = "91 22 0:62 / /sys/class rw,relatime - overlay overlay rw,lowerdir=/a:/b\n";
        assert!(!last_mount_is_ours(sysfs));
        assert!(last_mount_is_ours(&[sysfs, ours].concat()));
        assert!(last_mount_is_ours(&[sysfs, other, ours].concat()));
        assert!(!last_mount_is_ours(&[sysfs, ours, other].concat()));
    }
}
