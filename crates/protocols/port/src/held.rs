//! A UDP port that is held for a transport while no program uses it.
//!
//! Ports of a transport that only some programs use are opened with the first of them. Until then any user could bind the UDP
//! port, and keep the transport from all others or answer in their host's name. So a daemon holds it from its start:
//! [`HeldPort::hold`] opens the sockets of the transport's port and keeps duplicates of them, which receive nothing. A port that
//! is opened by [`HeldPort::open`] takes them over, so the UDP port is free at no time; when it has ended, [`HeldPort::rest`]
//! keeps them again.
//!
//! A DPDK device needs none: no socket of the kernel gets its packets.

use crate::error::PortError;
use crate::sys::socket;
use crate::{DescriptorStore, Encapsulation, Port, PortKind, PortSpec, WorkerShare, open_kind, wrap};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The duplicates, by the names of their sockets.
#[derive(Debug)]
struct HeldSockets {
    held: Mutex<BTreeMap<String, OwnedFd>>,
    /// What keeps them for a successor of this process.
    outlives: Option<Arc<dyn DescriptorStore>>,
}

impl HeldSockets {
    fn enter(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Keeps a duplicate, if the process may open another descriptor.
    fn keep(&self, name: &str, fd: BorrowedFd<'_>) {
        if let Ok(copy) = fd.try_clone_to_owned() {
            self.enter().insert(name.to_owned(), copy);
        }
    }
}

impl DescriptorStore for HeldSockets {
    fn take(&self, name: &str) -> Option<OwnedFd> {
        if let Some(fd) = self.enter().get(name) {
            return fd.try_clone().ok();
        }
        let fd = self.outlives.as_ref()?.take(name)?;
        self.keep(name, fd.as_fd());
        Some(fd)
    }
    fn store(&self, name: &str, fd: BorrowedFd<'_>) {
        self.keep(name, fd);
        self.outlives.iter().for_each(|store| store.store(name, fd));
    }
    fn remove(&self, name: &str) {
        self.enter().remove(name);
        self.outlives.iter().for_each(|store| store.remove(name));
    }
    fn is_kept(&self) -> bool {
        self.outlives.as_ref().is_some_and(|store| store.is_kept())
    }
}

/// The UDP port of an encapsulation at an address. Dropping it frees the UDP port, unless a port that was opened has it.
#[derive(Debug)]
pub struct HeldPort {
    spec: PortSpec,
    encapsulation: Encapsulation,
    sockets: Arc<HeldSockets>,
}

impl HeldPort {
    /// Holds the UDP port of an encapsulation at an address of a port. With a `store`, sockets of a predecessor of this process
    /// are taken over, and kept for a successor. `None`: there is nothing to hold, because the port's packets pass by no socket,
    /// or all its packets have a UDP port that the user has chosen.
    ///
    /// # Errors
    /// As [`crate::open`]; another process has the UDP port.
    pub fn hold(
        spec: &PortSpec,
        encapsulation: &Encapsulation,
        address: IpAddr,
        store: Option<Arc<dyn DescriptorStore>>,
    ) -> Result<Option<HeldPort>, PortError> {
        let udp_port = match &spec.kind {
            PortKind::Udp(udp) => udp.encapsulation(encapsulation).udp_port,
            PortKind::Packet(_) => encapsulation.udp_port,
            PortKind::Dpdk(_) => return Ok(None),
        };
        if udp_port != encapsulation.udp_port {
            return Ok(None);
        }
        let sockets = Arc::new(HeldSockets { held: Mutex::default(), outlives: store });
        let held = HeldPort { spec: spec.at(address), encapsulation: *encapsulation, sockets };
        drop(held.open_sockets()?);
        if held.sockets.enter().is_empty() {
            let none_kept = std::io::Error::from_raw_os_error(libc::EMFILE);
            return Err(PortError::from_io("keep a socket that holds a UDP port", none_kept));
        }
        held.rest();
        Ok(Some(held))
    }

    fn open_sockets(&self) -> Result<Box<dyn Port>, PortError> {
        let share = WorkerShare { store: Some(self.sockets.clone()), ..WorkerShare::only() };
        open_kind(&self.spec, &self.encapsulation, &share)
    }

    /// Opens the port at the address. One at a time: the next one after [`HeldPort::rest`].
    ///
    /// # Errors
    /// As [`crate::open`].
    pub fn open(&self) -> Result<Box<dyn Port>, PortError> {
        let port = self.open_sockets()?;
        // What reserves the UDP port of packet sockets goes on receiving nothing.
        if matches!(self.spec.kind, PortKind::Udp(_)) {
            let begin = |fd: &OwnedFd| socket::receive_all(fd);
            let begun = self.sockets.enter().values().try_for_each(begin);
            begun.map_err(|error| PortError::from_io("take the filter from a socket", error))?;
        }
        Ok(wrap(&self.spec, port, None, &WorkerShare::only()))
    }

    /// The port that was opened has ended: the sockets receive nothing any more, and lose what they have received.
    pub fn rest(&self) {
        for fd in self.sockets.enter().values() {
            if let Err(error) = socket::receive_nothing(fd) {
                tracing::warn!("a socket that only holds its UDP port receives packets: {error}");
            }
            socket::drain(fd);
        }
    }
}

impl Drop for HeldPort {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *self.sockets.enter());
        for (name, _) in held {
            self.sockets.outlives.iter().for_each(|store| store.remove(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    const ADDRESS: &str = "127.0.45.1";

    fn bus(udp_port: u16) -> Encapsulation {
        Encapsulation { udp_port, ..Encapsulation::UNIFIED_BUS }
    }

    #[test]
    fn nothing_else_binds_a_held_port_before_while_and_after_it_is_used() {
        let (bus, address): (_, IpAddr) = (bus(24_792), ADDRESS.parse().expect("an address"));
        let spec = PortSpec::parse("udp:dev=lo").expect("a specification");
        let held = HeldPort::hold(&spec, &bus, address, None).expect("free").expect("a socket");
        let is_taken =
            || UdpSocket::bind((address, bus.udp_port)).is_err() && UdpSocket::bind(("0.0.0.0", bus.udp_port)).is_err();
        assert!(is_taken());
        let sender = UdpSocket::bind((address, 0)).expect("a socket");
        let pending = || {
            sender.send_to(&[1; 64], (address, bus.udp_port)).expect("sent");
            let fds: Vec<_> = held.sockets.enter().values().map(std::os::fd::AsRawFd::as_raw_fd).collect();
            socket::is_readable(&fds)
        };
        assert!(!pending(), "it receives nothing");
        for _ in 0..2 {
            let port = held.open().expect("its own");
            assert!(is_taken() && pending() && port.caps().addrs[0].ip == address);
            drop(port);
            held.rest();
            assert!(is_taken() && !pending());
        }
        drop(held);
        assert!(!is_taken());
    }

    #[test]
    fn a_port_that_another_process_has_is_not_held() {
        let (bus, address): (_, IpAddr) = (bus(24_793), ADDRESS.parse().expect("an address"));
        let spec = PortSpec::parse("udp:dev=lo").expect("a specification");
        let other = UdpSocket::bind((address, bus.udp_port)).expect("free");
        let refused = HeldPort::hold(&spec, &bus, address, None).expect_err("taken");
        assert!(matches!(refused, PortError::InUse { .. }), "{refused}");
        drop(other);
        assert!(HeldPort::hold(&spec, &bus, address, None).expect("free").is_some());
        let chosen = PortSpec::parse("udp:dev=lo,udp_port=24794").expect("a specification");
        assert!(HeldPort::hold(&chosen, &bus, address, None).expect("nothing").is_none());
    }

    /// A supervisor's store.
    #[derive(Debug, Default)]
    struct Kept(Mutex<BTreeMap<String, OwnedFd>>);

    impl DescriptorStore for Kept {
        fn take(&self, name: &str) -> Option<OwnedFd> {
            self.0.lock().expect("no panic").get(name).map(|fd| fd.try_clone().expect("a copy"))
        }
        fn store(&self, name: &str, fd: BorrowedFd<'_>) {
            self.0.lock().expect("no panic").insert(name.to_owned(), fd.try_clone_to_owned().expect("a copy"));
        }
        fn remove(&self, name: &str) {
            self.0.lock().expect("no panic").remove(name);
        }
        fn is_kept(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_successor_holds_the_sockets_of_its_predecessor() {
        let (bus, address): (_, IpAddr) = (bus(24_795), ADDRESS.parse().expect("an address"));
        let spec = PortSpec::parse("udp:dev=lo").expect("a specification");
        let store = Arc::new(Kept::default());
        let first = HeldPort::hold(&spec, &bus, address, Some(store.clone())).expect("free").expect("a socket");
        // A process that falls drops nothing.
        first.sockets.enter().clear();
        std::mem::forget(first);
        assert!(UdpSocket::bind((address, bus.udp_port)).is_err(), "the supervisor has it");
        let next = HeldPort::hold(&spec, &bus, address, Some(store.clone())).expect("its own").expect("a socket");
        next.open().expect("a port");
        drop(next);
        assert!(store.0.lock().expect("no panic").is_empty());
        assert!(UdpSocket::bind((address, bus.udp_port)).is_ok());
    }
}
