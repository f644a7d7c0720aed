//! The policy without a restart: `burst proxy reload`, and the configuration file when it has changed.
//!
//! What can change are rules, peers, certificates, `open_ms` and `resume_s`. Everything else, and rules for a namespace or
//! control group that had none when the proxy started, need a restart. The file is read and checked as a whole before anything
//! changes; if it is refused, all stays as it was.
//!
//! Streams go on, but those of peers that are none any more. Rules that are gone or changed end first in the kernel, then in the
//! workers, and new ones begin in the opposite order: a connection that reaches a worker is one that its rules name. Meanwhile
//! connections to changed prefixes go by TCP. Other certificates are for channels that begin later. If this proxy serves other
//! addresses, its channels begin again, to introduce it with them.

use super::{Control, InterceptedPlace};
use crate::config::{Checked, PlaceRules, Prefix, ProxyConfig};
use crate::intercept::{self, TakenOfGroup};
use crate::message::Command;
use crate::sys;
use crate::tls::TlsKeys;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

/// How long a worker may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where the policy is read, and what it may name.
pub struct PolicySource {
    path: PathBuf,
    /// When the file was written that is in use, or was refused.
    written: Option<SystemTime>,
    /// The namespaces, as workers number them.
    places: Vec<Option<PathBuf>>,
    own_namespace: Arc<OwnedFd>,
}

impl PolicySource {
    /// `path`: of the configuration. `places`: namespaces that it has named.
    pub fn new(path: PathBuf, places: Vec<Option<PathBuf>>, own_namespace: Arc<OwnedFd>) -> Self {
        let written = written(&path);
        Self { path, written, places, own_namespace }
    }
}

fn written(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|facts| facts.modified()).ok()
}

/// What takes connections in one namespace from now on.
struct PlaceChange {
    /// Index among the interceptions.
    at: usize,
    before: Vec<TakenOfGroup>,
    now: Vec<TakenOfGroup>,
    routed: Vec<Prefix>,
}

impl Control {
    /// Reads the configuration again if its file has changed.
    pub(super) fn follow_policy(&mut self) {
        let time = written(&self.policy.path);
        // A file that is being replaced may be away.
        if time.is_none() || time == self.policy.written {
            return;
        }
        match self.reload() {
            Ok(text) => crate::log(text.trim_end()),
            Err(why) => crate::log(format_args!("{why}; the configuration stays as it was")),
        }
    }

    /// Reads the configuration again; returns a sentence.
    ///
    /// # Errors
    /// One sentence: nothing has changed.
    pub(super) fn reload(&mut self) -> Result<String, String> {
        self.policy.written = written(&self.policy.path);
        let path = self.policy.path.display().to_string();
        let new = ProxyConfig::load(&self.policy.path)?;
        let refused = |why: String| format!("{path}: {why}");
        new.check_reload(&self.config).map_err(refused)?;
        let rules = self.rules_of(&new).map_err(refused)?;
        let keys = TlsKeys::load(&new.config.keys, &new.config.name)?;
        let changes = self.changes(&new, &rules).map_err(refused)?;
        let old = std::mem::replace(&mut self.config, Arc::new(new));
        self.keys = keys;
        self.switch(changes, rules)?;
        self.change_peers(&old)?;
        if self.config.serves != old.serves {
            for at in 0..self.channels.len() {
                self.close_channel(at, "this proxy serves other addresses");
            }
        }
        self.update_alive();
        Ok(format!("{path} is in use; open streams go on\n"))
    }

    /// The rules of each place.
    fn rules_of(&self, new: &Checked) -> Result<Vec<PlaceRules>, String> {
        let mut by_path = new.places();
        let rules = self.policy.places.iter().map(|path| by_path.remove(path).unwrap_or_default()).collect();
        match by_path.into_keys().next() {
            None => Ok(rules),
            Some(path) => Err(format!(
                "rules for {} need a restart: there were none when the proxy started",
                path.map_or("the proxy's own namespace".into(), |path| path.display().to_string())
            )),
        }
    }

    /// Makes the routes of new prefixes, and says what each namespace takes.
    fn changes(&self, new: &Checked, rules: &[PlaceRules]) -> Result<Vec<PlaceChange>, String> {
        let mut old = self.config.places();
        let mut changes = Vec::new();
        for (path, rules) in self.policy.places.iter().zip(rules) {
            let Some(at) = self.interceptions.iter().position(|place| place.path == *path) else {
                if rules.takes.is_empty() {
                    continue;
                }
                return Err("rules [[take]] for a namespace that had none need a restart".into());
            };
            let taken: Vec<Prefix> = rules.takes.iter().flat_map(|take| new.takes[*take].0.clone()).collect();
            let without = self.route(&self.interceptions[at], new.config.mark, &taken)?;
            for (ip, bits) in &without {
                crate::log(format_args!("connections to {ip}/{bits} are not taken: there is no route to {ip}"));
            }
            let before = intercept::groups(&self.config, &old.remove(path).unwrap_or_default(), &without)?;
            let now = intercept::groups(new, rules, &without)?;
            let routed = taken.into_iter().filter(|prefix| !without.contains(prefix)).collect();
            changes.push(PlaceChange { at, before, now, routed });
        }
        Ok(changes)
    }

    /// Routes of marked connections; returns the prefixes without a route.
    fn route(&self, place: &InterceptedPlace, mark: u32, taken: &[Prefix]) -> Result<Vec<Prefix>, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", place.namespace);
        sys::enter_namespace(&place.routed.namespace).map_err(failed)?;
        let without = intercept::set_routes(mark, taken);
        sys::enter_namespace(&self.policy.own_namespace).map_err(failed)?;
        without
    }

    /// Goes from one policy to the other: what stays, then the workers' rules, then what is new.
    fn switch(&mut self, changes: Vec<PlaceChange>, rules: Vec<PlaceRules>) -> Result<(), String> {
        for change in &changes {
            let stays = common(&change.before, &change.now);
            self.interceptions[change.at].interception.set_policy(&stays)?;
        }
        let (done, answers) = channel();
        let config = &self.config;
        self.command_all(|| Command::Policy { config: config.clone(), rules: rules.clone(), done: done.clone() });
        for _ in 0..self.workers.len() {
            answers
                .recv_timeout(TIMEOUT)
                .map_err(|_| "a worker does not answer: only a part of the rules is in use")?;
        }
        for PlaceChange { at, now, routed, .. } in changes {
            let place = &mut self.interceptions[at];
            place.interception.set_policy(&now)?;
            *place.routed.prefixes.lock().unwrap_or_else(PoisonError::into_inner) = routed;
        }
        Ok(())
    }

    fn change_peers(&mut self, old: &Checked) -> Result<(), String> {
        for entry in &self.config.clone().config.peer {
            self.add_peer(entry)?;
        }
        let named = |name: &str| self.config.config.peer.iter().any(|entry| entry.name == name);
        let gone = old.config.peer.iter().filter(|entry| !named(&entry.name)).map(|entry| entry.name.clone());
        for name in gone.collect::<Vec<_>>() {
            let number = self.peers.iter().position(|peer| peer.name == name && !peer.is_listed && !peer.is_removed);
            number.into_iter().for_each(|number| self.remove_peer(number));
        }
        Ok(())
    }
}

/// What both policies take with the same ports.
fn common(before: &[TakenOfGroup], now: &[TakenOfGroup]) -> Vec<TakenOfGroup> {
    let ports_in = |groups: &[TakenOfGroup], path: &Option<PathBuf>, prefix: &Prefix| {
        let taken = groups.iter().filter(|group| group.path == *path).flat_map(|group| &group.taken);
        taken.filter(|(prefixes, _)| prefixes.contains(prefix)).map(|(_, ports)| ports.clone()).next()
    };
    let stays = |group: &TakenOfGroup| {
        let taken = group.taken.iter().map(|(prefixes, ports)| {
            let same = |prefix: &&Prefix| ports_in(before, &group.path, prefix).as_ref() == Some(ports);
            (prefixes.iter().filter(same).copied().collect(), ports.clone())
        });
        TakenOfGroup { path: group.path.clone(), taken: taken.collect() }
    };
    now.iter().map(stays).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_what_both_policies_take_alike() {
        let prefix = |text: &str| crate::config::prefix(text).unwrap();
        let group = |rules: &[(&[&str], u16)]| {
            let taken =
                rules.iter().map(|(texts, port)| (texts.iter().map(|t| prefix(t)).collect(), vec![(*port, *port)]));
            vec![TakenOfGroup { path: None, taken: taken.collect() }]
        };
        let before = group(&[(&["10.0.0.0/8", "10.1.0.0/16"], 80), (&["fd00::/64"], 81)]);
        let now = group(&[(&["10.0.0.0/8", "192.168.0.0/16"], 80), (&["10.1.0.0/16", "fd00::/64"], 81)]);
        let stays = common(&before, &now);
        let of = |at: usize| stays[0].taken[at].0.clone();
        assert_eq!((of(0), of(1)), (vec![prefix("10.0.0.0/8")], vec![prefix("fd00::/64")]));
        let other = vec![TakenOfGroup { path: Some("/g".into()), taken: before[0].taken.clone() }];
        assert!(common(&before, &other)[0].taken.iter().all(|(prefixes, _)| prefixes.is_empty()), "another group");
    }
}
