//! Interception in one network namespace: by the BPF programs of `csrc/steer.bpf.c` ([`bpf`]), or where they cannot be
//! loaded by rules of nf_tables ([`steer`]); and the routes for marked connections.
//!
//! Programs and rules belong to descriptors of this process, so its death takes them away, and new connections go by TCP
//! at once. Routing rules, routes and settings would stay: a second process ([`janitor`]) removes them when its standard
//! input ends. Setting up first removes what a predecessor with the same mark may have left.

use crate::config::{Checked, PlaceRules, Prefix, Taken};
use crate::counters::Counts;
use std::fmt::Display;
use std::io::{BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

pub mod bpf;
mod claim;
mod routes;
pub mod steer;
pub mod watch;

use bpf::BpfPrograms;
use claim::Claim;
pub use routes::{add_routes, set_routes};
use std::collections::BTreeMap;
use std::path::PathBuf;
use steer::{ControlGroup, NftSteering, SteerPolicy};

/// What one control group's programs have taken; `None`: those of all.
#[derive(Clone, Debug)]
pub struct TakenOfGroup {
    /// Directory of the group.
    pub path: Option<PathBuf>,
    /// Prefixes and ports.
    pub taken: Vec<Taken>,
}

/// The control groups of a namespace's rules, each once: a group has programs and maps of its own.
///
/// # Errors
/// One sentence: rules with and without a group.
pub fn groups(config: &Checked, rules: &PlaceRules, without_route: &[Prefix]) -> Result<Vec<TakenOfGroup>, String> {
    let mut by_path: BTreeMap<Option<PathBuf>, Vec<Taken>> = BTreeMap::new();
    for take in &rules.takes {
        let (prefixes, ports) = &config.takes[*take];
        let routed = prefixes.iter().copied().filter(|prefix| !without_route.contains(prefix)).collect();
        by_path.entry(config.config.take[*take].cgroup.clone()).or_default().push((routed, ports.clone()));
    }
    if by_path.contains_key(&None) && by_path.len() > 1 {
        return Err(
            "rules [[take]] with and without cgroup in one namespace: the root group contains all others".into()
        );
    }
    Ok(by_path.into_iter().map(|(path, taken)| TakenOfGroup { path, taken }).collect())
}

/// The same for rules of nf_tables.
///
/// # Errors
/// One sentence: a path is no control group.
pub fn policies(groups: &[TakenOfGroup]) -> Result<Vec<SteerPolicy>, String> {
    let policy = |group: &TakenOfGroup| {
        let path = group.path.as_deref();
        Ok(SteerPolicy { group: path.map(ControlGroup::at).transpose()?, taken: group.taken.clone() })
    };
    groups.iter().map(policy).collect()
}

/// What takes connections in one network namespace.
pub enum Interception {
    /// Programs for each control group.
    Bpf(Vec<BpfPrograms>),
    /// Rules.
    Nft(NftSteering),
}

impl Interception {
    /// `bpf` or `nft`, as in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bpf(_) => "bpf",
            Self::Nft(_) => "nft",
        }
    }

    /// Sets for prefixes whether a connected peer serves them.
    ///
    /// # Errors
    /// One sentence.
    pub fn set_alive(&mut self, changes: &[(Prefix, bool)]) -> Result<(), String> {
        match self {
            Self::Bpf(groups) => groups.iter_mut().try_for_each(|group| {
                changes.iter().try_for_each(|((ip, bits), alive)| {
                    group.set_alive((*ip, *bits), *alive).map_err(|why| format!("{ip}/{bits}: {why}"))
                })
            }),
            Self::Nft(rules) => rules.set_alive(changes),
        }
    }

    /// Takes what these groups say and nothing else; connections that were taken stay so.
    ///
    /// # Errors
    /// One sentence. A group that had no rule when the proxy started has no programs of BPF.
    pub fn set_policy(&mut self, groups: &[TakenOfGroup]) -> Result<(), String> {
        match self {
            Self::Bpf(programs) => {
                let has_programs = |group: &&TakenOfGroup| programs.iter().any(|one| one.group == group.path);
                if let Some(TakenOfGroup { path: Some(path), .. }) = groups.iter().find(|group| !has_programs(group)) {
                    return Err(format!("{}: rules for another control group need a restart", path.display()));
                }
                if groups.iter().any(|group| !has_programs(&group)) {
                    return Err("rules without a control group, which need a restart".into());
                }
                programs.iter_mut().try_for_each(|one| {
                    let own = groups.iter().find(|group| one.group == group.path);
                    one.set_policy(own.map_or(&[][..], |group| &group.taken))
                })
            }
            Self::Nft(rules) => rules.set_policy(&policies(groups)?),
        }
    }

    /// Connections that were taken, and those that were not, by reason.
    pub fn counts(&self) -> Counts {
        match self {
            Self::Bpf(groups) => groups.iter().flat_map(BpfPrograms::counts).collect(),
            Self::Nft(rules) => rules.counts(),
        }
    }
}

/// Starts the process that tidies up after this one. `namespaces`: paths; empty is the present one.
///
/// # Errors
/// One sentence.
pub fn start_janitor(namespaces: &[String], mark: u32) -> Result<Child, String> {
    let failed = |e: &dyn Display| format!("the process that removes routes later cannot be started: {e}");
    let program = std::env::current_exe().map_err(|e| failed(&e))?;
    let mut child = Command::new(program)
        .arg("janitor")
        .arg(mark.to_string())
        .args(namespaces)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| failed(&e))?;
    let mut line = String::new();
    let out = child.stdout.take().ok_or_else(|| failed(&"no pipe"))?;
    std::io::BufReader::new(out).read_line(&mut line).map_err(|e| failed(&e))?;
    if line.trim() == "ready" { Ok(child) } else { Err(failed(&"it has ended")) }
}

/// The janitor: claims the mark in each namespace and switches the settings on, and undoes both when standard input
/// ends. Signals to the group of the proxy do not end it before.
///
/// # Errors
/// One sentence.
pub fn janitor(mark: u32, namespaces: &[String]) -> Result<(), String> {
    crate::sys::ignore_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE]);
    let (mut kept, mut failed) = (Vec::new(), Vec::new());
    for path in namespaces {
        match claim_in(path, mark) {
            Ok(claimed) => kept.push(claimed),
            Err(why) => failed.push(format!("{path}: {why}")),
        }
    }
    if failed.is_empty() {
        // A proxy that has ended meanwhile does not read it; then standard input ends at once.
        let _ = writeln!(std::io::stdout(), "ready").and_then(|()| std::io::stdout().flush());
        failed.extend(std::io::stdin().read_to_end(&mut Vec::new()).err().map(|e| e.to_string()));
    }
    for (namespace, claim) in kept {
        let tidied = crate::sys::enter_namespace(&namespace).map_err(|e| e.to_string()).and_then(|()| {
            routes::remove_routes(mark);
            claim.end()
        });
        // The other namespaces are tidied all the same.
        failed.extend(tidied.err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn claim_in(path: &str, mark: u32) -> Result<(std::fs::File, Claim), String> {
    let namespace = std::fs::File::open(path).map_err(|e| e.to_string())?;
    crate::sys::enter_namespace(&namespace).map_err(|e| e.to_string())?;
    Ok((namespace, Claim::new(mark)?))
}
