//! Places of sockets and crash reports: the environment decides, so each case runs in a process of its own.
use burst_control::crash_report::default_directory;
use burst_control::socket_path::{SYSTEM_SOCKET, candidates, daemon_socket, device_node};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variables that are read. Those that a case does not name are removed.
const VARIABLES: [&str; 5] = ["BURST_SOCKET", "XDG_RUNTIME_DIR", "STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"];
/// Set in the process that runs one case.
const CASE: &str = "BURST_TEST_CASE";

/// Runs the test `name` again for each case, in a process with these variables; in that process, `check` with the case's number.
fn with_each(name: &str, cases: &[&[(&str, &str)]], check: impl Fn(usize)) {
    if let Some(case) = std::env::var(CASE).ok().and_then(|case| case.parse().ok()) {
        return check(case);
    }
    for (case, variables) in cases.iter().enumerate() {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        VARIABLES.iter().for_each(|variable| {
            command.env_remove(variable);
        });
        command.args(["--exact", name]).env(CASE, case.to_string()).envs(variables.iter().copied());
        let out = command.output().expect("started");
        assert!(out.status.success(), "{variables:?}: {}", String::from_utf8_lossy(&out.stdout));
    }
}

fn tmp_socket() -> PathBuf {
    format!("/tmp/burst-{}/burstd.sock", rustix::process::getuid().as_raw()).into()
}

#[test]
fn a_program_looks_at_the_named_socket_only_or_at_the_usual_places_in_order() {
    let cases: [&[(&str, &str)]; 4] = [
        &[("BURST_SOCKET", "/named"), ("XDG_RUNTIME_DIR", "/user")],
        &[("BURST_SOCKET", ""), ("XDG_RUNTIME_DIR", "/user")],
        &[("XDG_RUNTIME_DIR", "")],
        &[],
    ];
    with_each("a_program_looks_at_the_named_socket_only_or_at_the_usual_places_in_order", &cases, |case| {
        let usual = [PathBuf::from(SYSTEM_SOCKET), tmp_socket()];
        let expected = match case {
            0 => vec![PathBuf::from("/named")],
            1 => [&[PathBuf::from("/user/burst/burstd.sock")], &usual[..]].concat(),
            _ => usual.to_vec(),
        };
        assert_eq!(candidates(), expected);
    });
}

/// Root's daemon is at the system's path where that can be written.
#[test]
fn a_daemon_without_the_systems_path_is_where_its_user_may_write() {
    const ROOM: &str = env!("CARGO_TARGET_TMPDIR");
    let cases: [&[(&str, &str)]; 3] = [&[("XDG_RUNTIME_DIR", ROOM)], &[("XDG_RUNTIME_DIR", "/proc/sys")], &[]];
    with_each("a_daemon_without_the_systems_path_is_where_its_user_may_write", &cases, |case| {
        let place = daemon_socket();
        if place == Path::new(SYSTEM_SOCKET) {
            return assert!(rustix::process::geteuid().is_root());
        }
        let own = if access(ROOM, Access::WRITE_OK).is_ok() {
            Path::new(ROOM).join("burst/burstd.sock")
        } else {
            tmp_socket()
        };
        assert_eq!(place, if case == 0 { own } else { tmp_socket() });
    });
}

#[test]
fn reports_are_in_the_directory_of_the_service_or_of_the_user() {
    let cases: [&[(&str, &str)]; 5] = [
        &[("STATE_DIRECTORY", "/first:/second"), ("HOME", "/home/u")],
        &[("STATE_DIRECTORY", ""), ("XDG_STATE_HOME", "/state"), ("HOME", "/home/u")],
        &[("XDG_STATE_HOME", ""), ("HOME", "/home/u")],
        &[("HOME", "")],
        &[],
    ];
    with_each("reports_are_in_the_directory_of_the_service_or_of_the_user", &cases, |case| {
        let expected = match case {
            0 => Some("/first"),
            _ if rustix::process::geteuid().is_root() => Some("/var/lib/burst"),
            1 => Some("/state/burst"),
            2 => Some("/home/u/.local/state/burst"),
            _ => None,
        };
        assert_eq!(default_directory(), expected.map(PathBuf::from));
    });
}

#[test]
fn a_devices_node_has_the_devices_name() {
    assert_eq!(device_node("burst0"), "uverbs_burst0");
}
