//! The hosts of an exercise: a daemon of this user for each, on loopback addresses that no other daemon serves.
//!
//! No rights are needed: 127.0.0.0/8 belongs to every machine, and a daemon on the port kind `udp` is an ordinary program. A
//! daemon ends when the next exercise begins, at `burst lab stop`, or after half an hour in which no program used it.

use crate::host::LabHost;
use crate::place::LabPlace;
use crate::programs::LabPrograms;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// Time after which a daemon that no program uses ends.
const IDLE_EXIT: &str = "30m";
/// Seconds in which a daemon must serve.
const READY_SECONDS: i64 = 20;
/// Blocks of addresses that are tried: 127.BLOCK.0.0/16.
const BLOCKS: std::ops::Range<u8> = 71..121;
/// Looks at a process that is to end, 20 ms apart; then it is killed.
const END_LOOKS: usize = 400;

/// Starts `count` hosts. `wire` stands before the port of `b`.
///
/// # Errors
/// A sentence.
pub fn start(programs: &LabPrograms, place: &LabPlace, count: usize, wire: &str) -> Result<Vec<LabHost>, String> {
    let mut refused = String::new();
    for block in BLOCKS.filter(|block| is_free(*block, count)) {
        let mut hosts = Vec::new();
        let all = (0..count).try_for_each(|number| {
            hosts.push(start_one(programs, place, (block, number), wire)?);
            Ok(())
        });
        match all {
            Ok(()) => return Ok(hosts),
            Err(why) => {
                end(&hosts, &[], place);
                // Another program may have taken an address after the look at it: only then are others tried.
                let is_taken = !is_free(block, count);
                refused = why;
                if !is_taken {
                    break;
                }
            }
        }
    }
    match refused.is_empty() {
        true => Err(format!(
            "UDP port {ROCE_PORT} is taken on all addresses of the lab: end another lab with burst lab stop"
        )),
        false => Err(refused),
    }
}

fn address(block: u8, number: usize) -> String {
    format!("127.{block}.0.{}", number + 1)
}

/// Whether no program has the port of these addresses.
fn is_free(block: u8, count: usize) -> bool {
    (0..count).all(|number| UdpSocket::bind((address(block, number), ROCE_PORT)).is_ok())
}

fn start_one(
    programs: &LabPrograms,
    place: &LabPlace,
    (block, number): (u8, usize),
    wire: &str,
) -> Result<LabHost, String> {
    let letter = char::from(b'a' + number as u8).to_string();
    let (socket, log) = (place.file(&format!("{letter}.sock")), place.file(&format!("{letter}.log")));
    let address = address(block, number);
    let wire = if letter == "b" { wire } else { "" };
    let (ready, announce) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| format!("cannot make a pipe: {e}"))?;
    // The daemon inherits its end. This process starts one program at a time.
    rustix::io::fcntl_setfd(&announce, rustix::io::FdFlags::empty()).map_err(|e| e.to_string())?;
    let output = open_log(&log)?;
    let errors = output.try_clone().map_err(|e| e.to_string())?;
    let mut command = Command::new(&programs.burstd);
    without_variables(&mut command);
    command.args([
        "--config",
        "/dev/null",
        "--socket-mode",
        "0600",
        "--idle-exit",
        IDLE_EXIT,
        "--selective-repeat=off",
    ]);
    command.arg("--socket").arg(&socket).args(["--ready-fd", &announce.as_raw_fd().to_string()]);
    command.args(["--port", &format!("{wire}udp:dev=lo,addr={address}")]);
    command.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir("/").process_group(0);
    let child = command.spawn().map_err(|e| format!("cannot start {}: {e}", programs.burstd.display()))?;
    drop(announce);
    let host = LabHost { letter, address, socket, pid: child.id() as i32 };
    match is_ready(ready) {
        true => Ok(host),
        false => {
            end(&[host], &[], place);
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            Err(format!("burstd does not serve: {}", text.lines().last().unwrap_or("it said nothing")))
        }
    }
}

/// A program of the lab has no variable of Burst that the learner's shell may have.
pub fn without_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"BURST_")) {
        command.env_remove(name);
    }
}

fn open_log(path: &Path) -> Result<File, String> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    opened.map(File::from).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Waits until the daemon says that it serves.
fn is_ready(ready: OwnedFd) -> bool {
    let limit = Timespec { tv_sec: READY_SECONDS, tv_nsec: 0 };
    let polled = loop {
        match poll(&mut [PollFd::new(&ready, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other,
        }
    };
    let mut byte = [0];
    polled.is_ok_and(|number| number > 0) && matches!(File::from(ready).read(&mut byte), Ok(1))
}

/// Starts a traffic program that stays, and waits for its first line.
///
/// # Errors
/// A sentence.
pub fn start_helper(command: &mut Command) -> Result<i32, String> {
    // An inherited stderr would keep the pipe of `burst lab … | less` open.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|e| format!("cannot start the server: {e}"))?;
    let mut line = String::new();
    let output = child.stdout.take().ok_or("the server has no output")?;
    let read = BufReader::new(output).read_line(&mut line);
    match read.is_ok_and(|bytes| bytes > 0) {
        true => Ok(child.id() as i32),
        false => Err("the server of the exercise ended at once".to_owned()),
    }
}

/// Ends the daemons and helpers of a task, if they still run.
pub fn end(hosts: &[LabHost], helpers: &[i32], place: &LabPlace) {
    let pids: Vec<i32> = helpers.iter().copied().chain(hosts.iter().map(|host| host.pid)).collect();
    let ours = |pid: &i32| is_ours(*pid, place);
    for pid in pids.iter().filter(|pid| ours(pid)) {
        signal(*pid, Signal::TERM);
    }
    for _ in 0..END_LOOKS {
        if !pids.iter().any(ours) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for pid in pids.iter().filter(|pid| ours(pid)) {
        signal(*pid, Signal::KILL);
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether the process is a program of this lab, and not another one that has got its number: its command line names the
/// lab's directory.
fn is_ours(pid: i32, place: &LabPlace) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let directory = place.file("");
    let directory = directory.as_os_str().as_encoded_bytes();
    line.windows(directory.len()).any(|part| part == directory)
}
