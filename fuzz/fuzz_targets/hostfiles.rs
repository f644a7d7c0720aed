//! The devices and counters that a daemon describes, written as files below a directory: whatever the names are, nothing is made
//! outside of the directory, and no link leads elsewhere than to a bus device or an interface.
#![no_main]

use burst_control::frame::{self, ControlHeader};
use burst_control::{Counter, DeviceInfo, MESSAGE_MAX, Reply, Response};
use burst_fuzz::Tape;
use host_files::{directory::OpenDirectory, tree};
use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../crates/frontends/cli/src/host_files"]
#[allow(dead_code)]
mod host_files {
    pub mod counters;
    pub mod directory;
    pub mod tree;
}

/// Files of one input; more would only take time.
const GIDS_MAX: usize = 4;

/// Decodes the next reply of the tape, as the tool does.
fn reply(tape: &mut Tape<'_>) -> Option<Response> {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
    let len = usize::from(tape.half());
    frame::send_raw(&a, ControlHeader::new(1), tape.take(len), &[], SendFlags::DONTWAIT).ok()?;
    let mut buffer = vec![0; MESSAGE_MAX];
    let reply: Reply = frame::receive(&b, &mut buffer, RecvFlags::DONTWAIT, &mut Vec::new()).ok()?.decode().ok()?;
    reply.result.ok()
}

/// A new directory in memory, with a directory inside for the files.
fn place() -> PathBuf {
    let path = Path::new("/dev/shm").join(format!("burst-fuzz-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(path.join("class")).expect("made");
    path
}

fn check_links(directory: &Path) {
    for entry in fs::read_dir(directory).expect("read") {
        let entry = entry.expect("read");
        let kind = entry.file_type().expect("known");
        if kind.is_symlink() {
            let target = fs::read_link(entry.path()).expect("read");
            assert!(target.starts_with("/sys") && !target.iter().any(|part| part == ".."), "{target:?}");
        } else if kind.is_dir() {
            check_links(&entry.path());
        }
    }
}

fn write(devices: &[DeviceInfo], counters: &[Counter]) {
    let place = place();
    let classes = OpenDirectory::open(&place.join("class")).expect("opened");
    // Two devices of one name, or a counter named like another file, are refused.
    let _ = tree::write(&classes, devices, counters);
    let inside: Vec<_> = fs::read_dir(&place).expect("read").collect();
    assert_eq!(inside.len(), 1, "something was made outside");
    check_links(&place.join("class"));
    for device in devices {
        tree::shows(&place.join("class/infiniband").join(&device.name), device);
    }
    fs::remove_dir_all(&place).expect("removed");
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let Some(Response::Devices(mut devices)) = reply(&mut tape) else { return };
    devices.truncate(2);
    devices.iter_mut().for_each(|d| d.gids.truncate(GIDS_MAX));
    let mut counters = match reply(&mut tape) {
        Some(Response::Stats(counters)) => counters,
        _ => Vec::new(),
    };
    counters.truncate(GIDS_MAX);
    write(&devices, &counters);
});
