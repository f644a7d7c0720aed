//! `burst proxy run`: sets up namespaces, interception, workers and the control thread, and takes them down.

use crate::config::{Checked, Prefix};
use crate::control::{Control, ControlStart, RelayHandle};
use crate::hold::{self, SynQueue, SynRules};
use crate::intercept::watch::{self, TakenHere};
use crate::intercept::{self, Interception};
use crate::message::Report;
use crate::sys::{self, Waker};
use crate::tls::TlsKeys;
use crate::worker::{NetworkPlace, RelayWorker, WorkerStart, listener};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};

/// Where a thread's own namespace is found.
const OWN: &str = "/proc/thread-self/ns/net";

/// One namespace: the rules of the configuration that name it.
#[derive(Default)]
struct Named {
    takes: Vec<usize>,
    serves: Vec<usize>,
}

/// Runs the proxy until SIGTERM or SIGINT.
///
/// # Errors
/// One sentence.
pub fn run(config: Checked) -> Result<(), String> {
    let config = Arc::new(config);
    let keys = TlsKeys::load(&config.config.keys, &config.config.name)?;
    check_capabilities(&config)?;
    sys::raise_descriptor_limit().map_err(|e| format!("the limit of open files cannot be raised: {e}"))?;
    let signal = signals()?;
    let home = Arc::new(open(Path::new(OWN))?);
    let mark = config.config.mark;
    let named = namespaces(&config);
    let paths: Vec<String> =
        named.keys().map(|path| path.clone().unwrap_or(OWN.into()).display().to_string()).collect();
    let mut janitor = if named.is_empty() { None } else { Some(intercept::start_janitor(&paths, mark)?) };

    let mut interceptions = Vec::new();
    // The kernel removes the rules when the process ends.
    let mut syn_rules: Vec<SynRules> = Vec::new();
    let mut taken_here = Vec::new();
    let mut places: Vec<Vec<NetworkPlace>> = (0..config.workers).map(|_| Vec::new()).collect();
    for (path, rules) in named {
        let namespace = path.as_deref().map(open).transpose()?.map(Arc::new);
        if let Some(namespace) = &namespace {
            sys::enter_namespace(namespace.as_ref()).map_err(|e| format!("{}: {e}", show(path.as_deref())))?;
        }
        // Before the listeners: a process that is killed closes what it opened last first, and the removal of the rules
        // takes some time, in which a listener would take connections that nobody relays.
        let held = if rules.takes.is_empty() { None } else { hold_syns(&config) };
        let made = set_up(&config, namespace.as_ref().unwrap_or(&home), &rules);
        sys::enter_namespace(home.as_ref()).map_err(|e| format!("{OWN}: {e}"))?;
        let (interception, listeners, prefixes) = made.map_err(|why| format!("{}: {why}", show(path.as_deref())))?;
        interceptions.extend(interception);
        if !prefixes.is_empty() {
            let namespace = namespace.as_ref().unwrap_or(&home).clone();
            taken_here.push(TakenHere { namespace, prefixes });
        }
        let (rules_of_syns, queues) = held.unzip();
        syn_rules.extend(rules_of_syns);
        let mut queues = queues.unwrap_or_default().into_iter();
        for (places, listeners) in places.iter_mut().zip(listeners) {
            let (takes, serves) = (rules.takes.clone(), rules.serves.clone());
            places.push(NetworkPlace { namespace: namespace.clone(), listeners, queue: queues.next(), takes, serves });
        }
    }

    if !taken_here.is_empty() {
        watch::follow(mark, taken_here)?;
    }
    let (workers, reported, wake_control) = start_workers(&config, places, &home)?;
    let control = Control::new(ControlStart {
        config: config.clone(),
        keys,
        workers,
        reports: reported,
        wake: wake_control,
        interceptions,
        signal,
    })?;
    println!("ready");
    let ended = control.run();
    if let Some(janitor) = &mut janitor {
        drop(janitor.stdin.take());
        let status = janitor.wait().map_err(|e| format!("the process that removes routes: {e}"))?;
        if !status.success() {
            return Err(format!("the process that removes routes has failed ({status}): some may be left"));
        }
    }
    ended
}

/// Bits of the capabilities that are needed, with their names (capabilities(7)).
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

/// Whether this process may do what the configuration asks for.
fn check_capabilities(config: &Checked) -> Result<(), String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let held = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let missing = missing(held.unwrap_or(0), !config.takes.is_empty(), !config.serves.is_empty());
    if missing.is_empty() {
        return Ok(());
    }
    let rules = if config.takes.is_empty() { "[[serve]] needs" } else { "[[take]] needs" };
    Err(format!("{rules} capabilities that this process does not have: {}", missing.join(", ")))
}

fn missing(held: u64, takes: bool, serves: bool) -> Vec<&'static str> {
    let needed = NEEDED.iter().filter(|(bit, _)| takes || (serves && *bit != 39));
    needed.filter(|(bit, _)| held >> bit & 1 == 0).map(|(_, name)| *name).collect()
}

/// Ends the process if its thread panics. A process without one of its workers would go on taking connections that
/// nobody relays.
struct EndsProcess;

impl Drop for EndsProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

type Started = (Vec<RelayHandle>, Receiver<Report>, Arc<Waker>);

/// Starts the workers; returns their handles, what they report, and what wakes the control thread.
fn start_workers(
    config: &Arc<Checked>,
    places: Vec<Vec<NetworkPlace>>,
    home: &Arc<OwnedFd>,
) -> Result<Started, String> {
    let (reports, reported) = channel();
    let failed = |e: std::io::Error| format!("a worker cannot start: {e}");
    let wake_control = Arc::new(Waker::new().map_err(failed)?);
    let mut workers = Vec::new();
    for (number, places) in (0..).zip(places) {
        let (commands, commanded) = channel();
        let wake = Arc::new(Waker::new().map_err(failed)?);
        let queued = Arc::new(AtomicUsize::new(0));
        workers.push(RelayHandle { commands, wake: wake.clone(), port: 0, queued: queued.clone() });
        let start = WorkerStart {
            number,
            config: config.clone(),
            places,
            home: home.clone(),
            commands: commanded,
            queued,
            wake,
            reports: reports.clone(),
            wake_control: wake_control.clone(),
        };
        let run = move || {
            let _guard = EndsProcess;
            if let Err(e) = RelayWorker::new(start).and_then(RelayWorker::run) {
                crate::log(format_args!("a worker has failed: {e}"));
                std::process::exit(1);
            }
        };
        std::thread::Builder::new().name(format!("worker-{number}")).spawn(run).map_err(failed)?;
    }
    Ok((workers, reported, wake_control))
}

fn open(path: &Path) -> Result<OwnedFd, String> {
    File::open(path).map(OwnedFd::from).map_err(|e| format!("{}: {e}", path.display()))
}

fn show(path: Option<&Path>) -> String {
    path.map_or("the proxy's network namespace".into(), |path| format!("namespace {}", path.display()))
}

/// The rules by namespace; `None` is the process's own.
fn namespaces(config: &Checked) -> BTreeMap<Option<PathBuf>, Named> {
    let mut named: BTreeMap<Option<PathBuf>, Named> = BTreeMap::new();
    for (number, take) in config.config.take.iter().enumerate() {
        named.entry(take.namespace.clone()).or_default().takes.push(number);
    }
    for (number, serve) in config.config.serve.iter().enumerate() {
        named.entry(serve.namespace.clone()).or_default().serves.push(number);
    }
    named
}

/// Holds SYNs in the calling thread's namespace, if that is wanted and the kernel can.
fn hold_syns(config: &Checked) -> Option<(SynRules, Vec<SynQueue>)> {
    if !config.config.hold_syn {
        return None;
    }
    let held = hold::hold(config.config.mark, config.workers);
    let refused = |why| crate::log(format_args!("connects succeed before the server has answered: {why}"));
    held.map_err(refused).ok()
}

type SetUp = (Vec<Interception>, Vec<Vec<OwnedFd>>, Vec<Prefix>);

/// Sets up the calling thread's namespace: routes, listeners, programs.
fn set_up(config: &Checked, namespace: &OwnedFd, rules: &Named) -> Result<SetUp, String> {
    let taken: Vec<Prefix> = rules.takes.iter().flat_map(|take| config.takes[*take].0.clone()).collect();
    let without_route = intercept::add_routes(config.config.mark, &taken)?;
    for (ip, bits) in &without_route {
        crate::log(format_args!("connections to {ip}/{bits} are not taken: there is no route to {ip}"));
    }
    if rules.takes.is_empty() {
        return Ok((Vec::new(), (0..config.workers).map(|_| Vec::new()).collect(), Vec::new()));
    }
    let mut listeners = Vec::new();
    for _ in 0..config.workers {
        let failed = |e: std::io::Error| format!("a listener cannot be made: {e} (CAP_NET_ADMIN is needed)");
        let v4 = listener(false).map_err(failed)?;
        // A kernel may be without IPv6.
        listeners.push(std::iter::once(v4).chain(listener(true).ok()).collect::<Vec<_>>());
    }
    let cookie =
        sys::namespace_cookie(&listeners[0][0]).map_err(|e| format!("SO_NETNS_COOKIE: {e} (Linux 5.14 or newer)"))?;
    let mut interceptions = Vec::new();
    for (path, group) in groups(config, rules)? {
        let mut interception = Interception::load(namespace, cookie, config.config.mark, config.workers, &group)?;
        let own = |take: &&usize| config.config.take[**take].cgroup == path;
        for (prefixes, ports) in rules.takes.iter().filter(own).map(|take| &config.takes[*take]) {
            for prefix in prefixes.iter().filter(|prefix| !without_route.contains(prefix)) {
                interception.take(*prefix, ports)?;
            }
        }
        for (worker, own) in (0..).zip(&listeners) {
            for (v6, listener) in [false, true].into_iter().zip(own) {
                interception.listen(worker, v6, listener)?;
            }
        }
        interceptions.push(interception);
    }
    let routed = taken.into_iter().filter(|prefix| !without_route.contains(prefix)).collect();
    Ok((interceptions, listeners, routed))
}

/// The control groups of a namespace's rules, each once: a group has programs and maps of its own.
fn groups(config: &Checked, rules: &Named) -> Result<Vec<(Option<PathBuf>, OwnedFd)>, String> {
    let mut paths: Vec<Option<&PathBuf>> =
        rules.takes.iter().map(|take| config.config.take[*take].cgroup.as_ref()).collect();
    paths.sort();
    paths.dedup();
    if paths.contains(&None) && paths.len() > 1 {
        return Err(
            "rules [[take]] with and without cgroup in one namespace: the root group contains all others".into()
        );
    }
    let opened = |path: Option<&PathBuf>| path.map_or_else(intercept::root_group, |path| open(path));
    paths.into_iter().map(|path| Ok((path.cloned(), opened(path)?))).collect()
}

/// A descriptor that becomes readable by SIGTERM or SIGINT.
fn signals() -> Result<OwnedFd, String> {
    let failed = |e: std::io::Error| format!("signals: {e}");
    let (read, write) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let end = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, end).map_err(failed)?;
    }
    // Kept by the registrations.
    drop(write);
    Ok(read.into())
}

#[cfg(test)]
mod tests {
    use super::{EndsProcess, missing};
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_worker_that_panics_ends_the_process() {
        const CHILD: &str = "BURST_PROXY_TEST_PANICS";
        if std::env::var_os(CHILD).is_some() {
            let worker = std::thread::spawn(|| {
                let _guard = EndsProcess;
                panic!("on purpose");
            });
            // Does not return if the guard works.
            drop(worker.join());
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "serve::tests::a_worker_that_panics_ends_the_process"]).env(CHILD, "1");
        assert_eq!(child.output().unwrap().status.signal(), Some(libc::SIGABRT));
    }

    #[test]
    fn capabilities_are_asked_for_by_what_is_configured() {
        assert_eq!(missing(0, true, true), ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_BPF"]);
        assert_eq!(missing(1 << 12, false, true), ["CAP_SYS_ADMIN"]);
        assert!(missing(0, false, false).is_empty() && missing(u64::MAX, true, true).is_empty());
    }
}
