//! The ports of a host inside a program, and which program holds a port that is taken.

use burst_host::HostOptions;
use burst_host::host::WorkerPorts;
use burst_port::{Encapsulation, PortError, PortSpec, open_all};
use std::fs;
use std::path::Path;

/// Opens the ports of `options`, for one worker.
///
/// # Errors
/// A sentence: a specification is wrong, or a port cannot be opened; if its address is taken, by whom.
pub fn open(options: &HostOptions) -> Result<Vec<WorkerPorts>, String> {
    #[cfg(feature = "dpdk")]
    burst_port_dpdk::enable();
    let mut ports: WorkerPorts = Vec::new();
    for text in &options.ports {
        let spec = PortSpec::parse(text).map_err(|e| e.to_string())?;
        let placement = spec.kind.placement();
        if placement.workers.as_ref().is_some_and(|workers| *workers != [0]) || placement.cpus.is_some() {
            return Err(format!(
                "port '{text}': workers= and cpus= are for the daemon; the engine inside a program is one worker, on its threads"
            ));
        }
        ports.extend(open_all(&spec, &Encapsulation::ROCE, 1, None).map_err(|error| explain(&error))?);
    }
    Ok(vec![ports])
}

fn explain(error: &PortError) -> String {
    let PortError::InUse { addr, port } = error else { return error.to_string() };
    let holder =
        holder_of(*port).unwrap_or_else(|| "another program, or the kernel's soft-RoCE (rdma_rxe),".to_owned());
    format!(
        "UDP port {port} on {addr} is taken: {holder} holds it. A program with its own engine needs an address of its own: set \
         BURST_PORT=udp:addr=IP to a free one, or use the daemon (without BURST_MODE)"
    )
}

/// The program that has bound a UDP port in this network namespace, as far as this user may see it.
fn holder_of(port: u16) -> Option<String> {
    let inodes: Vec<u64> =
        ["/proc/self/net/udp", "/proc/self/net/udp6"].iter().flat_map(|table| inodes_of(table, port)).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let holder = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|target| inodes.iter().any(|inode| is_socket(&target, *inode)))
    })?;
    let name = fs::read_to_string(format!("/proc/{holder}/comm")).unwrap_or_default();
    Some(format!("{} (pid {holder})", name.trim()))
}

fn is_socket(target: &Path, inode: u64) -> bool {
    target.to_str() == Some(format!("socket:[{inode}]").as_str())
}

/// The inodes of the sockets in one of the kernel's tables that are bound to `port`.
fn inodes_of(table: &str, port: u16) -> Vec<u64> {
    let text = fs::read_to_string(table).unwrap_or_default();
    let inode = |line: &str| {
        let mut words = line.split_whitespace();
        let local = words.nth(1)?;
        let (_, bound) = local.rsplit_once(':')?;
        (u16::from_str_radix(bound, 16).ok()? == port).then(|| words.nth(7)?.parse().ok()).flatten()
    };
    text.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn the_holder_of_a_port_is_named() {
        let socket = std::net::UdpSocket::bind((IpAddr::from([127, 0, 0, 1]), 0)).expect("a socket");
        let port = socket.local_addr().expect("an address").port();
        let holder = holder_of(port).expect("this process holds it");
        assert!(holder.ends_with(&format!("(pid {})", std::process::id())), "{holder}");
        drop(socket);
        assert!(inodes_of("/proc/self/net/udp", port).is_empty());
        let why = explain(&PortError::InUse { addr: IpAddr::from([10, 0, 0, 1]), port });
        assert!(why.contains("10.0.0.1") && why.contains("BURST_PORT"), "{why}");
    }
}
