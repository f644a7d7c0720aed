//! `burst doctor`: checks everything that a verbs program needs, in the order in which a missing part stops the program.
//!
//! There is one table of checks. Each reads the [`Inspection`] and returns a [`Finding`]. A check that makes no sense because an
//! earlier one has failed is skipped with a reason. The last check moves real bytes through a queue pair, in a separate program
//! (`burst-pair`, plain verbs in C), so that a library that crashes or hangs is a finding and does not end the doctor.

mod library;
mod scheduler;
mod udp;

use crate::install;
use crate::ls;
use crate::sockets::{self, FoundDaemon};
use crate::vendored;
use burst_control::DeviceInfo;
use clap::ArgMatches;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Smallest MTU of a link that carries the largest RDMA MTU (`Mtu::for_link` knows the headers).
const LINK_MTU_FULL: u32 = 4188;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Passed: what was seen.
    Ok(String),
    /// Failed: what was seen, and the cure.
    Fail(String, String),
    /// Passed, but it could be better: what was seen, and the improvement.
    Hint(String, String),
    /// Cannot be checked: the reason.
    Skip(String),
}

/// The state of the machine that the checks read.
struct Inspection {
    tried: Vec<(PathBuf, FoundDaemon)>,
    devices: Result<Vec<DeviceInfo>, String>,
    libraries: Result<PathBuf, String>,
}

type Check = fn(&Inspection) -> Finding;

/// The checks, in order.
const CHECKS: &[(&str, Check)] = &[
    ("socket", socket),
    ("permission", permission),
    ("version", version),
    ("device", device),
    ("address", address),
    ("mtu", mtu),
    ("port 4791", port_4791),
    ("memlock", memlock),
    ("scheduler", scheduling),
    ("library", library_in_place),
    ("wheels", copies_of_wheels),
    ("transfer", transfer),
];

/// Runs every check.
pub fn doctor(matches: &ArgMatches) -> ExitCode {
    let inspection = examine(matches);
    let findings: Vec<(&str, Finding)> = CHECKS.iter().map(|(name, check)| (*name, check(&inspection))).collect();
    let failed = findings.iter().filter(|(_, f)| matches!(f, Finding::Fail(..))).count();
    let text = if matches.get_flag("json") {
        let rows = findings.iter().map(|(name, finding)| as_json(name, finding));
        crate::json_text(&json!({ "ok": failed == 0, "checks": rows.collect::<Vec<_>>() }))
    } else {
        let lines = findings.iter().map(|(name, finding)| as_line(name, finding) + "\n");
        let verdict = match failed {
            0 => "All is well.\n".to_owned(),
            n => format!("{n} of {} checks failed.\n", findings.len()),
        };
        lines.chain([verdict]).collect()
    };
    let printed = crate::finish(&text);
    if failed == 0 { printed } else { ExitCode::FAILURE }
}

fn examine(matches: &ArgMatches) -> Inspection {
    let mut tried = sockets::find(crate::chosen_socket(matches).as_deref());
    let devices = match tried.last_mut() {
        Some((_, FoundDaemon::Alive(client))) => ls::devices(client),
        _ => Err("no daemon".to_owned()),
    };
    Inspection { tried, devices, libraries: install::library_directory() }
}

fn as_line(name: &str, finding: &Finding) -> String {
    match finding {
        Finding::Ok(seen) => format!("ok    {name:<11} {seen}"),
        Finding::Skip(why) => format!("skip  {name:<11} {why}"),
        Finding::Hint(seen, cure) => format!("hint  {name:<11} {seen}\n      {:<11} better: {cure}", ""),
        Finding::Fail(seen, cure) => format!("FAIL  {name:<11} {seen}\n      {:<11} cure: {cure}", ""),
    }
}

fn as_json(name: &str, finding: &Finding) -> serde_json::Value {
    match finding {
        Finding::Ok(seen) => json!({ "check": name, "result": "ok", "seen": seen }),
        Finding::Skip(why) => json!({ "check": name, "result": "skip", "seen": why }),
        Finding::Hint(seen, cure) => json!({ "check": name, "result": "hint", "seen": seen, "cure": cure }),
        Finding::Fail(seen, cure) => json!({ "check": name, "result": "fail", "seen": seen, "cure": cure }),
    }
}

fn fail(seen: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding::Fail(seen.into(), cure.into())
}

impl Inspection {
    /// The daemon that answered, with its socket.
    fn daemon(&self) -> Option<(&PathBuf, &burst_client::Daemon)> {
        self.tried.iter().find_map(|(path, found)| match found {
            FoundDaemon::Alive(client) => Some((path, client)),
            _ => None,
        })
    }

    /// The default device, or the finding that there is none to look at.
    fn device(&self) -> Result<&DeviceInfo, Finding> {
        let list = self.devices.as_ref().map_err(|why| Finding::Skip(why.clone()))?;
        list.first().ok_or_else(|| Finding::Skip("no device".to_owned()))
    }
}

fn socket(inspection: &Inspection) -> Finding {
    if let Some((path, client)) = inspection.daemon() {
        return Finding::Ok(format!("{} is served by daemon {}", path.display(), client.info().pid));
    }
    let tried = sockets::tried_clause(&inspection.tried);
    if inspection
        .tried
        .iter()
        .any(|(_, f)| matches!(f, FoundDaemon::Forbidden | FoundDaemon::Untrusted(_) | FoundDaemon::Strange(_)))
    {
        return Finding::Ok(format!("there is one: {tried}"));
    }
    fail(
        format!("no daemon answers; tried {tried}"),
        "start burstd, or start programs with burst run, which starts one; burst run -- burst doctor checks with one",
    )
}

fn permission(inspection: &Inspection) -> Finding {
    if inspection.daemon().is_some() {
        return Finding::Ok("this user may connect".to_owned());
    }
    let refused = inspection.tried.iter().find_map(|(path, found)| match found {
        FoundDaemon::Forbidden => Some(fail(
            format!("this user may not connect to {}", path.display()),
            "ask its owner to start burstd with --socket-mode 0666, or start one of your own with burst run",
        )),
        FoundDaemon::Untrusted(why) => {
            Some(fail(why.as_str(), "trust that user by the variable, or name another --socket"))
        }
        _ => None,
    });
    refused.unwrap_or_else(|| Finding::Skip("no socket to connect to".to_owned()))
}

fn version(inspection: &Inspection) -> Finding {
    if let Some((_, client)) = inspection.daemon() {
        let theirs = &client.info().version;
        return Finding::Ok(format!("burst {} and burstd {theirs} speak the same protocol", env!("CARGO_PKG_VERSION")));
    }
    let strange = inspection.tried.iter().find_map(|(path, found)| match found {
        FoundDaemon::Strange(why) => Some((path, why)),
        _ => None,
    });
    match strange {
        None => Finding::Skip("no daemon".to_owned()),
        Some((path, why)) => fail(
            format!("{}: {why}", path.display()),
            "end that daemon and start the burstd that belongs to this burst",
        ),
    }
}

fn device(inspection: &Inspection) -> Finding {
    match &inspection.devices {
        Err(why) if inspection.daemon().is_none() => Finding::Skip(why.clone()),
        Err(why) => fail(why, "look at the daemon's log"),
        Ok(list) if list.is_empty() => fail("the daemon has no device", "start burstd with --port udp"),
        Ok(list) => match list.iter().find(|d| !d.up) {
            Some(down) => fail(
                format!("{} is down: interface {}", down.name, down.ifname),
                format!("ip link set {} up", down.ifname),
            ),
            None => {
                let names: Vec<String> = list.iter().map(|d| format!("{} on {}", d.name, d.port)).collect();
                Finding::Ok(names.join(", "))
            }
        },
    }
}

fn address(inspection: &Inspection) -> Finding {
    let device = match inspection.device() {
        Ok(device) => device,
        Err(finding) => return finding,
    };
    let Some(first) = device.gids.first() else {
        return fail(
            format!("{} has no address: interface {}", device.name, device.ifname),
            format!("ip addr add ADDRESS/LENGTH dev {}", device.ifname),
        );
    };
    let ip = std::net::Ipv6Addr::from(first.gid);
    let loopback = ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback());
    let scope = if loopback { "; reaches this host only: use burstd --port udp:dev=IFACE for others" } else { "" };
    let count = device.gids.len();
    Finding::Ok(format!(
        "GID 0 of {} is {} on {} ({count} in all){scope}",
        device.name,
        ls::address(first),
        first.ifname
    ))
}

fn mtu(inspection: &Inspection) -> Finding {
    let device = match inspection.device() {
        Ok(device) => device,
        Err(finding) => return finding,
    };
    let (link, path) = (device.link_mtu, ls::path_mtu(device));
    if path >= link {
        return fail(
            format!("packets of path MTU {path} do not fit the link's MTU {link}"),
            format!("ip link set {} mtu 1500, at least", device.ifname),
        );
    }
    let hint = if path < 4096 {
        format!("; faster with a link MTU of {LINK_MTU_FULL} or more on the whole way")
    } else {
        String::new()
    };
    Finding::Ok(format!("link {link}, RDMA path {path}{hint}"))
}

fn port_4791(inspection: &Inspection) -> Finding {
    udp::check(inspection.daemon().map(|(_, client)| client.info().pid))
}

fn memlock(_: &Inspection) -> Finding {
    Finding::Ok("not needed: Burst registers memory without locking it, ulimit -l may be anything".to_owned())
}

fn scheduling(inspection: &Inspection) -> Finding {
    scheduler::check(inspection.daemon().map(|(_, client)| client.info().pid))
}

fn library_in_place(inspection: &Inspection) -> Finding {
    match &inspection.libraries {
        Err(why) => {
            let (seen, cure) = why.split_once(": ").unwrap_or((why, "install Burst again"));
            fail(seen, cure)
        }
        Ok(directory) => library::check(directory),
    }
}

/// Copies of libibverbs in environments of Python, over which `burst run` preloads.
fn copies_of_wheels(_: &Inspection) -> Finding {
    let found = vendored::copies(None);
    let Some(first) = found.first() else {
        return Finding::Ok("no environment of Python here carries a libibverbs of its own".to_owned());
    };
    let others = match found.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Finding::Ok(format!("{}{others}: burst run preloads Burst's library, which comes before it", first.display()))
}

fn transfer(inspection: &Inspection) -> Finding {
    match (inspection.daemon(), inspection.device(), &inspection.libraries) {
        (None, ..) => Finding::Skip("no daemon".to_owned()),
        (_, Err(finding), _) => finding,
        (_, _, Err(_)) => Finding::Skip("no library".to_owned()),
        (Some((socket, _)), Ok(device), Ok(directory)) => library::transfer(directory, socket, &device.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_daemon(found: FoundDaemon) -> Inspection {
        Inspection {
            tried: vec![("/x".into(), found)],
            devices: Err("no daemon".into()),
            libraries: Err("gone".into()),
        }
    }

    #[test]
    fn no_daemon_fails_once_and_skips_what_depends_on_it() {
        let inspection = without_daemon(FoundDaemon::Absent);
        assert!(matches!(socket(&inspection), Finding::Fail(..)));
        for check in [permission, version, device, address, mtu, scheduling, transfer] {
            assert!(matches!(check(&inspection), Finding::Skip(_)));
        }
    }

    #[test]
    fn a_forbidden_socket_is_a_matter_of_permission() {
        let inspection = without_daemon(FoundDaemon::Forbidden);
        assert!(matches!(socket(&inspection), Finding::Ok(_)));
        assert!(matches!(permission(&inspection), Finding::Fail(..)));
    }

    #[test]
    fn a_socket_of_another_user_is_a_matter_of_trust() {
        let inspection = without_daemon(FoundDaemon::Untrusted("/x belongs to user 1002".into()));
        assert!(matches!(permission(&inspection), Finding::Fail(seen, _) if seen.contains("user 1002")));
        assert!(matches!(version(&inspection), Finding::Skip(_)));
    }

    #[test]
    fn another_version_is_reported() {
        let inspection = without_daemon(FoundDaemon::Strange("version mismatch".into()));
        assert!(matches!(version(&inspection), Finding::Fail(seen, _) if seen.contains("mismatch")));
    }

    #[test]
    fn the_recommended_mtu_is_the_smallest_that_helps() {
        use burst_base::verbs::Mtu;
        assert_eq!(Mtu::for_link(LINK_MTU_FULL), Some(Mtu::B4096));
        assert_ne!(Mtu::for_link(LINK_MTU_FULL - 1), Some(Mtu::B4096));
    }

    #[test]
    fn a_failure_shows_its_cure() {
        let line = as_line("mtu", &fail("too small", "raise it"));
        assert!(line.contains("FAIL") && line.contains("cure: raise it"));
    }
}
