//! Finds the process that has bound UDP port 4791 (RoCEv2) in this network namespace, by /proc.

use super::{Finding, fail};
use std::path::Path;

/// RoCEv2's UDP port in hexadecimal, as in /proc/net/udp.
const PORT_HEX: &str = ":12B7";

/// The owner of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SocketHolder {
    /// A process of this host.
    Process(u32, String),
    /// The kernel's soft-RoCE.
    Kernel,
    /// A process whose descriptors this user may not see.
    Hidden,
}

/// Passes if the UDP port is free or the daemon has bound it.
pub fn check(daemon: Option<u32>) -> Finding {
    if let Some(pid) = daemon.filter(|pid| other_namespace(*pid)) {
        return Finding::Skip(format!("daemon {pid} runs in another network namespace"));
    }
    let holders: Vec<SocketHolder> = inodes().into_iter().map(|inode| holder(inode, daemon)).collect();
    let mine = |h: &SocketHolder| matches!((h, daemon), (SocketHolder::Process(pid, _), Some(d)) if *pid == d);
    let other = holders.iter().find(|h| !mine(h));
    match (other, daemon, holders.is_empty()) {
        (_, Some(_), _) if holders.iter().any(mine) => Finding::Ok("held by the daemon".to_owned()),
        (Some(SocketHolder::Hidden), Some(_), _) => {
            Finding::Ok("taken, by a process that this user may not look into".to_owned())
        }
        (Some(other), ..) => taken(other),
        (None, _, true) => Finding::Ok("free".to_owned()),
        (None, ..) => Finding::Ok("held by the daemon".to_owned()),
    }
}

fn taken(holder: &SocketHolder) -> Finding {
    match holder {
        SocketHolder::Kernel => {
            fail("taken by the kernel's soft-RoCE", "remove it (rdma link delete NAME), or use another interface")
        }
        SocketHolder::Process(pid, name) if name == "burstd" => {
            fail(format!("taken by another burstd ({pid})"), format!("use that one (--socket), or end it: kill {pid}"))
        }
        SocketHolder::Process(pid, name) => {
            fail(format!("taken by {name} ({pid})"), format!("end that program: kill {pid}"))
        }
        SocketHolder::Hidden => {
            let cure = "share that user's daemon: its owner makes the socket accessible (chmod 666 SOCKET, chmod o+x on its \
                        directories), then run `burst run --socket SOCKET PROGRAM`";
            fail(
                "taken by a process of another user",
                crate::sharing::cure("4791", Path::new("")).unwrap_or(cure.into()),
            )
        }
    }
}

fn other_namespace(pid: u32) -> bool {
    let link = |process: String| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    match (link("self".to_owned()), link(pid.to_string())) {
        (Some(ours), Some(theirs)) => ours != theirs,
        _ => false,
    }
}

/// Inodes of the UDP sockets on the port; 0 for one of the kernel's own.
fn inodes() -> Vec<u64> {
    let tables = ["/proc/self/net/udp", "/proc/self/net/udp6"];
    tables.iter().filter_map(|t| std::fs::read_to_string(t).ok()).flat_map(|text| inodes_in(&text)).collect()
}

fn inodes_in(table: &str) -> Vec<u64> {
    let rows = table.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|columns| columns.get(1).is_some_and(|local| local.ends_with(PORT_HEX)));
    ours.filter_map(|columns| columns.get(9)?.parse().ok()).collect()
}

/// Finds the process that has this socket; looks at the daemon first, which is the most likely one.
fn holder(inode: u64, daemon: Option<u32>) -> SocketHolder {
    if inode == 0 {
        return SocketHolder::Kernel;
    }
    let listed = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = listed.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let found = daemon.into_iter().chain(all).find(|pid| has_socket(*pid, inode));
    found.map_or(SocketHolder::Hidden, |pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        SocketHolder::Process(pid, name.trim().to_owned())
    })
}

fn has_socket(pid: u32, inode: u64) -> bool {
    let want = format!("socket:[{inode}]");
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|e| std::fs::read_link(e.path()).ok()).any(|target| target == Path::new(&want))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn the_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
            12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4242 2 0000 0\n \
            13: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4243 2 0000 0\n";
        assert_eq!(inodes_in(table), [4242]);
        assert!(inodes_in("").is_empty());
    }

    #[test]
    fn a_socket_of_ours_is_found() {
        use std::os::fd::AsRawFd;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let text = link.to_string_lossy().into_owned();
        let inode: u64 = text.trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap();
        let me = std::process::id();
        assert!(matches!(holder(inode, Some(me)), SocketHolder::Process(pid, _) if pid == me));
        assert_eq!(holder(0, None), SocketHolder::Kernel);
    }
}
