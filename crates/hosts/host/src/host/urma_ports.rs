//! The UDP port of URMA, held at each address from the daemon's start: else any user could bind it while no program uses URMA,
//! and keep others from URMA or answer in the host's name.
//!
//! A port that another process has is tried again, one with each look at the interfaces.

use burst_base::DeviceId;
use burst_ledger::Charge;
use burst_port::HeldPort;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// An address of a device.
pub(super) type UrmaAddress = (DeviceId, IpAddr);
/// A port, and what it costs the daemon's own account. `None`: there is nothing to hold.
pub(super) type UrmaHold = Option<(HeldPort, Charge)>;

/// The ports that are held.
#[derive(Default)]
pub(super) struct HeldUrmaPorts {
    /// Whether they are held at all.
    pub is_on: bool,
    /// By device and address. What another process has is among them, too, without a hold.
    held: BTreeMap<UrmaAddress, UrmaHold>,
    /// Those that another process has.
    missing: VecDeque<UrmaAddress>,
}

impl HeldUrmaPorts {
    /// What is held at an address.
    pub fn get(&self, device: DeviceId, address: IpAddr) -> Option<&HeldPort> {
        self.held.get(&(device, address))?.as_ref().map(|(held, _)| held)
    }

    /// Holds the ports of new addresses, frees those of addresses that are not `present` any more, and tries one that was
    /// missing.
    pub fn update(&mut self, present: &[UrmaAddress], mut hold: impl FnMut(UrmaAddress) -> Result<UrmaHold, String>) {
        let is_known = |at: &&UrmaAddress| self.held.contains_key(at);
        if self.missing.is_empty() && self.held.len() == present.len() && present.iter().all(|at| is_known(&at)) {
            return;
        }
        self.held.retain(|at, _| present.contains(at));
        self.missing.retain(|at| present.contains(at));
        if let Some(at) = self.missing.pop_front() {
            match hold(at) {
                Ok(held) => {
                    tracing::info!(address = %at.1, "the port of URMA is free again, and held");
                    self.held.insert(at, held);
                }
                Err(_) => self.missing.push_back(at),
            }
        }
        for at in present {
            if self.held.contains_key(at) {
                continue;
            }
            let held = hold(*at).unwrap_or_else(|why| {
                tracing::warn!("programs cannot use URMA at {}, as long as this is so: {why}", at.1);
                self.missing.push_back(*at);
                None
            });
            self.held.insert(*at, held);
        }
        assert!(self.missing.len() <= self.held.len(), "an address is missing twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_go_while_another_process_has_their_ports_are_not_missing_any_more() {
        let at = |last: u8| (DeviceId(0), IpAddr::from([127, 0, 0, last]));
        let mut ports = HeldUrmaPorts { is_on: true, ..HeldUrmaPorts::default() };
        let mut tried = Vec::new();
        let mut look = |present: &[UrmaAddress], is_free: bool| {
            tried.clear();
            ports.update(present, |at| {
                tried.push(at);
                if is_free { Ok(None) } else { Err("taken".into()) }
            });
            (ports.missing.len(), ports.held.len(), tried.len())
        };
        let all = [at(1), at(2), at(3)];
        assert_eq!(look(&all, false), (3, 3, 3));
        assert_eq!(look(&all[..1], false), (1, 1, 1), "two go at once");
        assert_eq!(look(&all, false), (3, 3, 3), "they are back");
        for left in (0..3).rev() {
            assert_eq!(look(&all, true), (left, 3, 1));
        }
        assert_eq!(look(&all, true), (0, 3, 0), "nothing is left to be tried");
    }
}
