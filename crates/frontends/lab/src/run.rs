//! One run of an exercise's traffic: starts the program, notes packets and counters, and reads what it says.

use crate::capture::LabCapture;
use crate::host::LabHost;
use crate::hosts::without_variables;
use crate::pairs::Pairs;
use crate::programs::LabPrograms;
use crate::task::{ClientFacts, LabTask, RunRecord, Settings};
use burst_client::Daemon;
use burst_client::explain::explain;
use std::process::{Command, Stdio};

/// Settings that are the lab's, not the traffic program's.
pub const SENDERS: &str = "senders";
/// The congestion control of all hosts.
pub const CC: &str = "cc";
/// The port on which a server listens that stays.
pub const LISTEN: &str = "listen";
/// Those that the traffic program does not know.
const OURS: [&str; 3] = [SENDERS, CC, LISTEN];

/// Runs the traffic of the task with these changes, and adds what was measured.
///
/// # Errors
/// A sentence.
pub fn run(programs: &LabPrograms, task: &mut LabTask, changed: &Settings) -> Result<(), String> {
    let mut settings = task.settings.clone();
    changed.iter().for_each(|(name, value)| settings.insert(name, value.clone()));
    if let Some(algorithm) = settings.get(CC) {
        choose_congestion_control(programs, &task.hosts, algorithm)?;
    }
    let before = counters(&task.hosts)?;
    let capture = LabCapture::begin(&task.hosts)?;
    let said = traffic(programs, &task.hosts, &settings);
    let (packets, missed) = capture.end();
    let mut record = RunRecord { changed: changed.clone(), packets, missed, ..RunRecord::default() };
    read_facts(&said?, &mut record);
    record.counters = grown(&before, &counters(&task.hosts)?);
    if !record.is_good() {
        for host in &task.hosts {
            if let Some(said) = why(host) {
                record.why.insert(&host.letter, said);
            }
        }
    }
    task.add(record);
    Ok(())
}

/// The command that runs the traffic program.
pub fn program(programs: &LabPrograms) -> Command {
    let mut command = Command::new(&programs.exercise);
    without_variables(&mut command);
    command.env("LD_LIBRARY_PATH", &programs.libraries);
    command
}

/// Runs the traffic program. Returns what it printed.
fn traffic(programs: &LabPrograms, hosts: &[LabHost], settings: &Settings) -> Result<String, String> {
    let server = hosts.get(1).ok_or("the exercise has no server")?;
    let mut command = program(programs);
    let senders = settings.get(SENDERS).and_then(|text| text.parse().ok()).unwrap_or(hosts.len() - 1);
    let clients: Vec<String> = hosts
        .iter()
        .filter(|host| host.letter != "b")
        .take(senders)
        .map(|host| host.socket.display().to_string())
        .collect();
    command.arg(format!("serve={}", server.socket.display()));
    command.arg(format!("clients={}", clients.join(","))).arg(format!("address={}", server.address));
    for (name, value) in settings.iter().filter(|(name, _)| !OURS.contains(name)) {
        command.arg(format!("{name}={value}"));
    }
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("cannot run {}: {e}", programs.exercise.display()))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        let last = why.lines().last().unwrap_or("it ran into its time limit");
        return Err(format!("the traffic could not run: {last}"));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Reads the lines of the traffic program.
fn read_facts(text: &str, record: &mut RunRecord) {
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match words[0] {
            "client" => record.clients.push(ClientFacts {
                status: number(2) as u32,
                vendor_err: number(3) as u32,
                done: number(4),
                received: number(5),
            }),
            "received" => (record.received, record.wrong) = (number(1), number(2)),
            "memory" => record.memory = Some(number(1) == 1),
            "counter" => record.counter = Some((number(1), number(2))),
            "event" => {
                let status = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0);
                record.event = Some((words.get(1).unwrap_or(&"").to_string(), status));
            }
            _ => {}
        }
    }
}

type HostCounters = Pairs<Pairs<u64>>;

/// The counters of all hosts.
fn counters(hosts: &[LabHost]) -> Result<HostCounters, String> {
    let mut all = HostCounters::default();
    for host in hosts {
        let gone = |e| format!("host {} does not answer ({e}): begin the exercise again", host.letter);
        let mut daemon = Daemon::connect(&host.socket).map_err(gone)?;
        let mut sums = Pairs::default();
        for one in daemon.counters().map_err(gone)? {
            let before = sums.get(&one.name).copied().unwrap_or(0);
            sums.insert(&one.name, before + one.value);
        }
        all.insert(&host.letter, sums);
    }
    Ok(all)
}

/// By how much each counter grew; those that did not are left out.
fn grown(before: &HostCounters, after: &HostCounters) -> HostCounters {
    let mut all = HostCounters::default();
    for (host, counters) in after.iter() {
        let mut differences = Pairs::default();
        for (name, value) in counters.iter() {
            let old = before.get(host).and_then(|old| old.get(name)).copied().unwrap_or(0);
            if *value > old {
                differences.insert(name, value - old);
            }
        }
        all.insert(host, differences);
    }
    all
}

fn choose_congestion_control(programs: &LabPrograms, hosts: &[LabHost], algorithm: &str) -> Result<(), String> {
    for host in hosts {
        let done = Command::new(&programs.burst).arg("cc").arg(algorithm).arg("--socket").arg(&host.socket).output();
        let done = done.map_err(|e| e.to_string())?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).trim().to_owned());
        }
    }
    Ok(())
}

/// What `burst why` says of the last failure of a host: the cause, and the cure. `None` if nothing has failed there.
fn why(host: &LabHost) -> Option<(String, String)> {
    let (records, _) = Daemon::connect(&host.socket).ok()?.failures(None, 1).ok()?;
    let explanation = explain(records.first()?);
    Some((explanation.cause, explanation.cure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_read() {
        let mut record = RunRecord::default();
        read_facts(
            "client 0 13 37 5 4\nreceived 4 0\nmemory 0\ncounter 7 12\nevent RDMA_CM_EVENT_REJECTED -8\n",
            &mut record,
        );
        assert_eq!((record.clients[0].status, record.clients[0].vendor_err, record.clients[0].done), (13, 37, 5));
        assert_eq!((record.received, record.memory, record.counter), (4, Some(false), Some((7, 12))));
        assert_eq!(record.event, Some(("RDMA_CM_EVENT_REJECTED".into(), -8)));
        assert!(!record.is_good());
    }
}
