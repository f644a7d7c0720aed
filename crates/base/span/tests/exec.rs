//! An open `/proc/PID/mem` reaches one program only: neither a program that the process runs later by `exec`, nor another
//! process that gets the same number.

use burst_span::{ProcessMemory, Unreachable};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// An address that the program in `pid` has mapped.
fn mapped(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let line = maps.lines().find(|line| line.contains("[stack]")).expect("a stack");
    let end = line.split(['-', ' ']).nth(1).expect("a range");
    u64::from_str_radix(end, 16).expect("an address") - 64
}

#[test]
fn the_program_after_exec_is_not_reached() {
    // A shell that writes a line when it runs, and executes another shell when it reads a line.
    let mut child = Command::new("sh")
        .args(["-c", "echo; read line; exec sh -c 'echo; read line'"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    let (mut to, mut from) = (child.stdin.take().expect("stdin"), BufReader::new(child.stdout.take().expect("stdout")));
    let mut line = String::new();
    let owner = std::fs::metadata(format!("/proc/{}", child.id())).expect("there").uid();
    let mut step = || from.read_line(&mut line).expect("a line");
    step();
    let memory = ProcessMemory::open(child.id(), owner).expect("ours");
    let mut out = [0; 8];
    let at = mapped(child.id());
    assert_eq!(memory.span(at, 8).read_to(&mut out), Ok(()));
    assert_eq!(memory.span(at, 8).write_from(&out), Ok(()));
    to.write_all(b"\n").expect("written");
    step();
    let again = ProcessMemory::open(child.id(), owner).expect("ours");
    let at = mapped(child.id());
    assert_eq!(again.span(at, 8).read_to(&mut out), Ok(()), "the number reaches the new program");
    assert_eq!(memory.span(at, 8).read_to(&mut out), Err(Unreachable::Gone), "the file opened before does not");
    assert_eq!(memory.span(at, 8).write_from(&out), Err(Unreachable::Gone));
    drop(to);
    child.wait().expect("ended");
    assert_eq!(again.span(at, 8).read_to(&mut out), Err(Unreachable::Gone));
}
