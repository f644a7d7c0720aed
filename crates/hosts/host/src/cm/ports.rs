//! Port numbers of each port space: which addresses are bound, and which numbers are free.
//!
//! Only explicit binds, sources that name a port, and listeners hold a number, and each is charged for it. An id that connects
//! without a bind gets a number that is likely to be free, but is not reserved: no packet is ever demultiplexed by it.
//!
//! Ids of which all allow it (RDMA_OPTION_ID_REUSEADDR) may be bound to one address. A listener's address is its own, as in the
//! kernel: otherwise another user could listen on one of the addresses that a listener on all addresses has, and get its
//! connections.

use crate::limits::PORTS_MAX;
use crate::refusal::refuse_charge;
use burst_control::Refusal;
use burst_control::cm::PortSpace;
use burst_ledger::{Account, Charge, Resource};
use std::collections::HashMap;
use std::net::IpAddr;

/// The ephemeral ports, as in Linux: the numbers for ids that choose none.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

const _: () = assert!(PORTS_MAX == (*EPHEMERAL.end() - *EPHEMERAL.start()) as u64 + 1);

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
    /// The address may be shared with bindings that allow it too. False as soon as the id listens.
    pub reuse: bool,
}

/// Why an address cannot be bound, or listened on.
#[derive(Debug, PartialEq, Eq)]
pub enum BindError {
    /// EADDRINUSE: another id has this address.
    InUse,
    /// EADDRNOTAVAIL: another id has all addresses, or has one of all those that are wanted.
    NotAvailable,
    /// The user has as many ports as one user may have, or there are no more.
    Refused(Refusal),
}

impl BindError {
    /// The refusal of an address.
    pub fn refusal(self, wanted: &PortBinding) -> Refusal {
        let PortBinding { ip, port, .. } = wanted;
        match self {
            BindError::Refused(refusal) => refusal,
            BindError::InUse => Refusal { errno: libc::EADDRINUSE, sentence: format!("port {port} of {ip} is in use") },
            BindError::NotAvailable => {
                let sentence = format!("port {port} of {ip} is not free: another id has an address that includes it");
                Refusal { errno: libc::EADDRNOTAVAIL, sentence }
            }
        }
    }
}

impl PortBinding {
    fn overlaps(&self, other: &PortBinding) -> bool {
        if self.ip.is_ipv4() != other.ip.is_ipv4() {
            let both_families = |b: &PortBinding| b.ip.is_ipv6() && b.ip.is_unspecified() && !b.only_v6;
            return both_families(self) || both_families(other);
        }
        self.ip == other.ip || self.ip.is_unspecified() || other.ip.is_unspecified()
    }

    /// Why an id cannot have this address beside another id's.
    fn clash(&self, other: &PortBinding) -> BindError {
        let is_any = self.ip.is_unspecified() || other.ip.is_unspecified();
        if is_any { BindError::NotAvailable } else { BindError::InUse }
    }
}

/// The bound addresses of all port spaces.
#[derive(Debug)]
pub struct PortTable {
    /// With what each costs.
    bound: HashMap<(PortSpace, u16), Vec<(PortBinding, Charge)>>,
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

    /// Binds an address for an account; port 0 chooses a free number. Returns the binding.
    ///
    /// # Errors
    /// Why the account cannot have the address.
    pub fn bind(&mut self, account: &Account, wanted: PortBinding) -> Result<PortBinding, BindError> {
        let charge = account.charge(&[(Resource::Port, 1)]);
        let charge = charge.or_else(refuse_charge).map_err(BindError::Refused)?;
        if wanted.port != 0 {
            self.check(&wanted)?;
            return Ok(self.insert(wanted, charge));
        }
        for _ in EPHEMERAL {
            let binding = PortBinding { port: self.any(), reuse: false, ..wanted };
            if self.check(&binding).is_ok() {
                return Ok(self.insert(binding, charge));
            }
        }
        Err(BindError::NotAvailable)
    }

    /// Makes the address of an id that is about to listen its own: it is not shared any more, whatever the options of this id and
    /// of others. Returns the binding as it is from now on.
    ///
    /// # Errors
    /// Another id is bound to an address that includes this one, or is included in it.
    pub fn listen(&mut self, binding: &PortBinding) -> Result<PortBinding, BindError> {
        let Some(all) = self.bound.get_mut(&(binding.ps, binding.port)) else { return Err(BindError::NotAvailable) };
        let Some(own) = all.iter().position(|(o, _)| o == binding) else { return Err(BindError::NotAvailable) };
        let mut others = all.iter().enumerate().filter(|(at, _)| *at != own).map(|(_, (other, _))| other);
        if let Some(other) = others.find(|other| other.overlaps(binding)) {
            return Err(binding.clash(other));
        }
        all[own].0.reuse = false;
        Ok(all[own].0)
    }

    /// Whether an address can be bound. As in the kernel, two ids share an address only if both allow it, and neither listens.
    fn check(&self, wanted: &PortBinding) -> Result<(), BindError> {
        let others = self.bound.get(&(wanted.ps, wanted.port)).into_iter().flatten().map(|(other, _)| other);
        let mut clashing = others.filter(|o| o.overlaps(wanted) && !(o.reuse && wanted.reuse));
        clashing.next().map_or(Ok(()), |other| Err(wanted.clash(other)))
    }

    fn insert(&mut self, binding: PortBinding, charge: Charge) -> PortBinding {
        debug_assert!(binding.port != 0, "no id has port 0");
        self.bound.entry((binding.ps, binding.port)).or_default().push((binding, charge));
        binding
    }

    /// Returns the memory of released addresses to the heap.
    pub fn shrink(&mut self) {
        self.bound.shrink_to_fit();
    }

    /// Releases an address.
    pub fn release(&mut self, binding: &PortBinding) {
        if let Some(others) = self.bound.get_mut(&(binding.ps, binding.port)) {
            if let Some(at) = others.iter().position(|(o, _)| o == binding) {
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
    use burst_ledger::{AccountId, Capacities, Ledger, Policy};

    fn binding(ip: &str, port: u16) -> PortBinding {
        PortBinding { ps: PortSpace::Tcp, ip: ip.parse().expect("ip"), port, only_v6: false, reuse: false }
    }

    /// A table whose addresses cost nothing.
    struct Free(PortTable, Account);

    impl Free {
        fn new() -> Free {
            let ledger = Ledger::new(Capacities::new(|_| u64::MAX), Policy::default());
            Free(PortTable::default(), ledger.account(AccountId::User(0), true))
        }
        fn bind(&mut self, wanted: PortBinding) -> Result<PortBinding, BindError> {
            self.0.bind(&self.1, wanted)
        }
    }

    #[test]
    fn the_same_address_is_taken_once() {
        let mut ports = Free::new();
        let first = ports.bind(binding("10.0.0.1", 7174)).expect("free");
        assert_eq!(ports.bind(binding("10.0.0.1", 7174)), Err(BindError::InUse));
        assert_eq!(ports.bind(binding("0.0.0.0", 7174)), Err(BindError::NotAvailable));
        assert_eq!(ports.bind(binding("::", 7174)), Err(BindError::NotAvailable), "both families");
        assert!(ports.bind(PortBinding { only_v6: true, ..binding("::", 7174) }).is_ok());
        assert!(ports.bind(binding("10.0.0.2", 7174)).is_ok());
        assert!(ports.bind(PortBinding { ps: PortSpace::Udp, ..binding("10.0.0.1", 7174) }).is_ok());
        ports.0.release(&first);
        assert!(ports.bind(binding("10.0.0.1", 7174)).is_ok());
    }

    #[test]
    fn reuse_needs_both() {
        let mut ports = Free::new();
        let sharing = PortBinding { reuse: true, ..binding("10.0.0.1", 1) };
        assert!(ports.bind(sharing).is_ok() && ports.bind(sharing).is_ok());
        assert_eq!(ports.bind(binding("10.0.0.1", 1)), Err(BindError::InUse));
    }

    #[test]
    fn an_address_that_is_listened_on_is_shared_by_no_other() {
        let sharing = |ip: &str| PortBinding { reuse: true, ..binding(ip, 7174) };
        for (listens, wants) in [("0.0.0.0", "10.0.0.1"), ("10.0.0.1", "0.0.0.0"), ("::", "10.0.0.1")] {
            let mut ports = Free::new();
            let first = ports.bind(sharing(listens)).expect("free");
            let listening = ports.0.listen(&first).expect("alone");
            assert_eq!(ports.bind(sharing(wants)), Err(BindError::NotAvailable), "{listens}, then {wants}");
            assert_eq!(ports.bind(binding(wants, 7174)), Err(BindError::NotAvailable));
            assert_eq!(ports.bind(sharing(listens)), Err(ports.0.bound[&(PortSpace::Tcp, 7174)][0].0.clash(&first)));
            ports.0.release(&listening);
            assert!(ports.bind(sharing(wants)).is_ok(), "free again");
        }
    }

    #[test]
    fn who_shares_an_address_cannot_listen_on_it() {
        for (first, second, why) in [
            ("0.0.0.0", "10.0.0.1", BindError::NotAvailable),
            ("10.0.0.1", "0.0.0.0", BindError::NotAvailable),
            ("10.0.0.1", "10.0.0.1", BindError::InUse),
        ] {
            let mut ports = Free::new();
            let [first, second] = [first, second].map(|ip| {
                let sharing = PortBinding { reuse: true, ..binding(ip, 7174) };
                ports.bind(sharing).expect("both allow it")
            });
            assert_eq!(ports.0.listen(&second), Err(why));
            ports.0.release(&first);
            assert_eq!(ports.0.listen(&second), Ok(PortBinding { reuse: false, ..second }), "alone by now");
        }
    }

    #[test]
    fn free_numbers_end() {
        let mut ports = Free::new();
        let mut taken = std::collections::HashSet::new();
        while let Ok(b) = ports.bind(binding("0.0.0.0", 0)) {
            assert!(b.port != 0 && taken.insert(b.port));
        }
        assert_eq!(taken.len(), EPHEMERAL.count());
    }

    #[test]
    fn no_user_takes_all_numbers() {
        let ledger = Ledger::new(Capacities::new(|_| PORTS_MAX), Policy::default());
        let mut ports = PortTable::default();
        let users = [1, 2, 3].map(|uid| ledger.account(AccountId::User(uid), false));
        for user in &users {
            let mut explicit = UNPRIVILEGED_START..=u16::MAX;
            let mut take = |port| ports.bind(user, binding("0.0.0.0", port));
            while let Some(port) = explicit.next()
                && !matches!(take(port), Err(BindError::Refused(_)))
            {}
            assert!(matches!(take(0), Err(BindError::Refused(_))), "a share ends, whatever the numbers are");
        }
        let root = ledger.account(AccountId::User(0), true);
        assert!(ports.bind(&root, binding("0.0.0.0", 0)).is_ok(), "root has room");
        drop(ports);
        assert_eq!(ledger.used(Resource::Port), 0);
    }
}
