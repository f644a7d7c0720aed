//! Port numbers of each port space: which addresses are bound, and which numbers are free.
//!
//! Only explicit binds, sources that name a port, and listeners hold a number. An id that connects without a bind gets a number
//! that is likely to be free, but is not reserved: no packet is ever demultiplexed by it.

use burst_control::cm::PortSpace;
use std::collections::HashMap;
use std::net::IpAddr;

/// The ephemeral ports, as in Linux: the numbers for ids that choose none.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// The first port that needs no privilege where the kernel does not tell.
const UNPRIVILEGED_START: u16 = 1024;

/// Whether binding to a port needs CAP_NET_BIND_SERVICE. As for sockets, `net.ipv4.ip_unprivileged_port_start` of this process's
/// network namespace sets the limit, for IPv6 too; port 0 chooses a free number and is not privileged.
pub fn is_privileged(port: u16) -> bool {
    port != 0 && u32::from(port) < unprivileged_start()
}

/// The value may be 65536, when all ports are privileged.
fn unprivileged_start() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(UNPRIVILEGED_START.into())
}

/// A bound address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBinding {
    /// Port space.
    pub ps: PortSpace,
    /// Address; an unspecified one means all addresses of its family.
    pub ip: IpAddr,
    /// Port.
    pub port: u16,
    /// `::` does not include IPv4.
    pub only_v6: bool,
    /// The address may be shared with bindings that allow it too.
    pub reuse: bool,
}

impl PortBinding {
    fn overlaps(&self, other: &PortBinding) -> bool {
        if self.ip.is_ipv4() != other.ip.is_ipv4() {
            let both_families = |b: &PortBinding| b.ip.is_ipv6() && b.ip.is_unspecified() && !b.only_v6;
            return both_families(self) || both_families(other);
        }
        self.ip == other.ip || self.ip.is_unspecified() || other.ip.is_unspecified()
    }
}

/// The bound addresses of all port spaces.
#[derive(Debug)]
pub struct PortTable {
    bound: HashMap<(PortSpace, u16), Vec<PortBinding>>,
    next: u16,
}

impl Default for PortTable {
    fn default() -> Self {
        PortTable { bound: HashMap::new(), next: *EPHEMERAL.start() }
    }
}

impl PortTable {
    /// A number for an id that is not bound. It is not reserved.
    pub fn any(&mut self) -> u16 {
        let port = self.next;
        self.next = if port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
        port
    }

    /// Binds an address; port 0 chooses a free number. Returns the binding, or `None` when the address is in use.
    pub fn bind(&mut self, wanted: PortBinding) -> Option<PortBinding> {
        if wanted.port != 0 {
            return self.take(wanted).then_some(wanted);
        }
        for _ in EPHEMERAL {
            let binding = PortBinding { port: self.any(), reuse: false, ..wanted };
            if self.take(binding) {
                return Some(binding);
            }
        }
        None
    }

    fn take(&mut self, wanted: PortBinding) -> bool {
        let others = self.bound.entry((wanted.ps, wanted.port)).or_default();
        let free = others.iter().all(|o| !o.overlaps(&wanted) || o.reuse && wanted.reuse);
        if free {
            others.push(wanted);
        }
        free
    }

    /// Returns the memory of released addresses to the heap.
    pub fn shrink(&mut self) {
        self.bound.shrink_to_fit();
    }

    /// Releases an address.
    pub fn release(&mut self, binding: &PortBinding) {
        if let Some(others) = self.bound.get_mut(&(binding.ps, binding.port)) {
            if let Some(at) = others.iter().position(|o| o == binding) {
                others.swap_remove(at);
            }
            if others.is_empty() {
                self.bound.remove(&(binding.ps, binding.port));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(ip: &str, port: u16) -> PortBinding {
        PortBinding { ps: PortSpace::Tcp, ip: ip.parse().expect("ip"), port, only_v6: false, reuse: false }
    }

    #[test]
    fn the_same_address_is_taken_once() {
        let mut ports = PortTable::default();
        let first = ports.bind(binding("10.0.0.1", 7174)).expect("free");
        assert!(ports.bind(binding("10.0.0.1", 7174)).is_none());
        assert!(ports.bind(binding("0.0.0.0", 7174)).is_none());
        assert!(ports.bind(binding("::", 7174)).is_none(), "both families");
        assert!(ports.bind(PortBinding { only_v6: true, ..binding("::", 7174) }).is_some());
        assert!(ports.bind(binding("10.0.0.2", 7174)).is_some());
        assert!(ports.bind(PortBinding { ps: PortSpace::Udp, ..binding("10.0.0.1", 7174) }).is_some());
        ports.release(&first);
        assert!(ports.bind(binding("10.0.0.1", 7174)).is_some());
    }

    #[test]
    fn reuse_needs_both() {
        let mut ports = PortTable::default();
        let sharing = PortBinding { reuse: true, ..binding("10.0.0.1", 1) };
        assert!(ports.bind(sharing).is_some() && ports.bind(sharing).is_some());
        assert!(ports.bind(binding("10.0.0.1", 1)).is_none());
    }

    #[test]
    fn free_numbers_end() {
        let mut ports = PortTable::default();
        let mut taken = std::collections::HashSet::new();
        while let Some(b) = ports.bind(binding("0.0.0.0", 0)) {
            assert!(taken.insert(b.port));
        }
        assert_eq!(taken.len(), EPHEMERAL.count());
    }
}
