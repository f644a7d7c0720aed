//! The daemon as the first process of a container.

mod common;

use common::Daemon;
use std::process::Command;

#[test]
fn a_session_from_outside_of_the_container_is_no_reason_to_fail() {
    // Its identifier is 0 in the container.
    let in_container = |program: &str| {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--pid", "--fork", "--kill-child", program]);
        command
    };
    if !in_container("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no namespace of processes can be made");
        return;
    }
    let daemon = Daemon::start_by(in_container(env!("CARGO_BIN_EXE_burstd")), "container", 1);
    daemon.connect();
}
