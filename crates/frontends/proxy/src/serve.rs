//! `burst proxy run`: sets up namespaces, interception, workers and the control thread, and takes them down.

use crate::admin_client::AdminClient;
use crate::config::{Checked, EncryptLinks, InterceptBy, PlaceRules, Prefix};
use crate::control::{Control, ControlStart, InterceptedPlace, PolicySource, RelayHandle};
use crate::exporter;
use crate::hold::{self, SynQueue, SynRules};
use crate::intercept::bpf::{self, BpfPrograms};
use crate::intercept::steer::NftSteering;
use crate::intercept::watch::{self, TakenHere};
use crate::intercept::{self, Interception, TakenOfGroup};
use crate::message::Report;
use crate::socket_owner::SocketTable;
use crate::sys::{self, Waker};
use crate::tls::TlsKeys;
use crate::worker::{NetworkPlace, RelayWorker, WorkerStart, listener};
use burst_control::metrics_place::MetricsPlace;
use burst_control::supervisor::SupervisorNotifier;
use std::fmt::Display;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

/// Where a thread's own namespace is found.
const OWN: &str = "/proc/thread-self/ns/net";

/// Flags of `burst proxy run`.
pub struct RunFlags<'a> {
    /// Where it shows its counters.
    pub metrics: Option<&'a MetricsPlace>,
    /// A proxy that runs with the same admin socket ends first: the seconds that its open streams have.
    pub replace: Option<u64>,
}

/// Runs the proxy until SIGTERM or SIGINT, or until it has been drained. `path`: of its configuration, which it reads again
/// when that changes.
///
/// # Errors
/// One sentence.
pub fn run(config: Checked, path: PathBuf, flags: &RunFlags<'_>) -> Result<(), String> {
    let config = Arc::new(config);
    let keys = TlsKeys::load(&config.config.keys, &config.config.name)?;
    check_capabilities(&config)?;
    sys::raise_descriptor_limit().map_err(|e| format!("the limit of open files cannot be raised: {e}"))?;
    let signal = signals()?;
    flags.replace.map_or(Ok(()), |seconds| replace(&config.admin(), seconds, signal.as_fd()))?;
    let own_namespace = Arc::new(open(Path::new(OWN))?);
    let mark = config.config.mark;
    let named = config.places();
    let paths: Vec<String> =
        named.keys().map(|path| path.clone().unwrap_or(OWN.into()).display().to_string()).collect();
    let janitor = if named.is_empty() { None } else { Some(intercept::start_janitor(&paths, mark)?) };

    let of_workers = (0..config.workers).map(|_| Vec::new()).collect();
    let mut made = PlacesMade { interceptions: Vec::new(), syn_rules: Vec::new(), places: of_workers };
    let places = named.keys().cloned().collect();
    for (path, rules) in named {
        made.add(&config, &own_namespace, path.as_deref(), &rules)?;
    }
    let PlacesMade { interceptions, syn_rules: _syn_rules, places: of_workers } = made;
    follow_routes(mark, &interceptions)?;
    let (workers, reported, wake_control) = start_workers(&config, of_workers, &own_namespace)?;
    let control = Control::new(ControlStart {
        config: config.clone(),
        keys,
        workers,
        reports: reported,
        wake: wake_control,
        interceptions,
        policy: PolicySource::new(path, places, own_namespace),
        signal,
    })?;
    let ended = run_control(control, flags.metrics, config.admin());
    janitor.map_or(Ok(()), await_janitor)?;
    ended
}

/// Keeps the routes of what is taken in step with the host's.
fn follow_routes(mark: u32, interceptions: &[InterceptedPlace]) -> Result<(), String> {
    let taken_here: Vec<TakenHere> = interceptions.iter().map(|place| place.routed.clone()).collect();
    if taken_here.is_empty() { Ok(()) } else { watch::follow(mark, taken_here) }
}

/// Lets the proxy that listens at an admin socket end, if there is one. Until this one takes connections they go by TCP.
fn replace(admin: &Path, seconds: u64, stop: BorrowedFd<'_>) -> Result<(), String> {
    let earlier = AdminClient::connect_to_any(admin).map_err(|why| format!("--replace: {why}"))?;
    let Some(earlier) = earlier else { return Ok(()) };
    crate::log(format_args!("the proxy at {} has {seconds} s for its open streams", admin.display()));
    earlier.end(seconds, Some(stop)).map(drop).map_err(|why| format!("--replace: {why}"))
}

/// Runs the control thread's loop, which answers the thread that shows metrics.
///
/// # Errors
/// One sentence.
fn run_control(control: Control, metrics: Option<&MetricsPlace>, admin: PathBuf) -> Result<(), String> {
    let _metrics = exporter::start(metrics, admin)?;
    // A socket that cannot be used is the supervisor's fault; connections are carried without it.
    let supervisor = SupervisorNotifier::new(std::env::var_os("NOTIFY_SOCKET")).unwrap_or_else(|e| {
        crate::log(format_args!("NOTIFY_SOCKET cannot be used: {e}"));
        SupervisorNotifier::default()
    });
    println!("ready");
    notify(&supervisor, "READY=1\nSTATUS=carrying connections");
    let ended = control.run();
    notify(&supervisor, "STOPPING=1\nSTATUS=ending");
    ended
}

fn notify(supervisor: &SupervisorNotifier, message: &str) {
    if let Err(e) = supervisor.notify(message) {
        crate::log(format_args!("the supervisor was not notified: {e}"));
    }
}

/// Lets the process that removes routes end, and waits for it.
fn await_janitor(mut janitor: Child) -> Result<(), String> {
    drop(janitor.stdin.take());
    let status = janitor.wait().map_err(|e| format!("the process that removes routes: {e}"))?;
    if !status.success() {
        return Err(format!("the process that removes routes has failed ({status}): some may be left"));
    }
    Ok(())
}

/// What was made in the namespaces.
struct PlacesMade {
    interceptions: Vec<InterceptedPlace>,
    /// The kernel removes the rules when the process ends.
    syn_rules: Vec<SynRules>,
    /// Of each worker.
    places: Vec<Vec<NetworkPlace>>,
}

impl PlacesMade {
    /// Sets up a namespace; `None` is the process's own.
    fn add(
        &mut self,
        config: &Checked,
        own: &Arc<OwnedFd>,
        path: Option<&Path>,
        rules: &PlaceRules,
    ) -> Result<(), String> {
        let namespace = path.map(open).transpose()?.map(Arc::new);
        let failed = |why: &dyn Display| format!("{}: {why}", show(path));
        namespace.as_ref().map_or(Ok(()), sys::enter_namespace).map_err(|e| failed(&e))?;
        // Before the listeners: a process that is killed closes what it opened last first, and the removal of the rules
        // takes some time, in which a listener would take connections that no worker relays.
        let held = if rules.takes.is_empty() { None } else { hold_syns(config) };
        let made = set_up(config, namespace.as_ref().unwrap_or(own), rules);
        let tables: Vec<_> = (0..config.workers).map(|_| SocketTable::open()).collect();
        sys::enter_namespace(own).map_err(|e| format!("{OWN}: {e}"))?;
        let (taken_by, listeners, prefixes) = made.map_err(|why| failed(&why))?;
        let keep_alive = matches!(taken_by, Some((Interception::Nft(_), _)));
        let routed = TakenHere {
            namespace: namespace.as_ref().unwrap_or(own).clone(),
            prefixes: Arc::new(Mutex::new(prefixes)),
        };
        self.interceptions.extend(taken_by.map(|by| intercepted(path, by, routed)));
        let (rules_of_syns, queues) = held.unzip();
        self.syn_rules.extend(rules_of_syns);
        let mut queues = queues.unwrap_or_default().into_iter();
        for ((places, listeners), sockets) in self.places.iter_mut().zip(listeners).zip(tables) {
            let (takes, serves) = (rules.takes.clone(), rules.serves.clone());
            let (namespace, queue) = (namespace.clone(), queues.next());
            let sockets = sockets.map_err(|e| failed(&format!("sock_diag: {e}")))?;
            places.push(NetworkPlace {
                namespace,
                listeners,
                queue,
                sockets: Some(sockets),
                keep_alive,
                takes,
                serves,
            });
        }
        Ok(())
    }
}

const CAP_NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const CAP_SYS_ADMIN: (u32, &str) = (21, "CAP_SYS_ADMIN");
const CAP_BPF: (u32, &str) = (39, "CAP_BPF");

/// Whether this process may do what the configuration asks for.
fn check_capabilities(config: &Checked) -> Result<(), String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let held = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let missing = missing(held.unwrap_or(0), config);
    if missing.is_empty() {
        return Ok(());
    }
    let rules = if config.takes.is_empty() { "[[serve]] needs" } else { "[[take]] needs" };
    Err(format!("{rules} capabilities that this process does not have: {}", missing.join(", ")))
}

/// The capabilities (capabilities(7)) that are missing. With `auto` those for BPF are not needed.
fn missing(held: u64, config: &Checked) -> Vec<&'static str> {
    let (takes, serves) = (&config.config.take, &config.config.serve);
    let by_bpf = config.config.intercept == InterceptBy::Bpf && !takes.is_empty();
    let mut namespaces = takes.iter().map(|take| &take.namespace).chain(serves.iter().map(|serve| &serve.namespace));
    let enters = namespaces.any(Option::is_some) || (by_bpf && takes.iter().any(|take| take.cgroup.is_none()));
    let needed = [(CAP_NET_ADMIN, !takes.is_empty() || !serves.is_empty()), (CAP_SYS_ADMIN, enters), (CAP_BPF, by_bpf)];
    let lacking = needed.into_iter().filter(|((bit, _), needed)| *needed && held >> bit & 1 == 0);
    lacking.map(|((_, name), _)| name).collect()
}

/// Says how connections of a namespace are taken.
fn intercepted(
    path: Option<&Path>,
    (interception, why): (Interception, String),
    routed: TakenHere,
) -> InterceptedPlace {
    let place = InterceptedPlace { path: path.map(Path::to_owned), namespace: show(path), interception, why, routed };
    let (namespace, by) = (&place.namespace, place.interception.name());
    crate::log(format_args!("connections of {namespace} are taken by {by}: {}", place.why));
    place
}

/// Ends the process if its thread panics. A process without one of its workers would go on taking connections without
/// relaying them.
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
    own_namespace: &Arc<OwnedFd>,
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
            own_namespace: own_namespace.clone(),
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

/// Holds SYNs in the calling thread's namespace, if that is wanted and the kernel can.
fn hold_syns(config: &Checked) -> Option<(SynRules, Vec<SynQueue>)> {
    if !config.config.hold_syn {
        return None;
    }
    let held = hold::hold(config.config.mark, config.workers);
    let refused = |why| crate::log(format_args!("connects succeed before the server has answered: {why}"));
    held.map_err(refused).ok()
}

type SetUp = (Option<(Interception, String)>, Vec<Vec<OwnedFd>>, Vec<Prefix>);

/// Sets up the calling thread's namespace: routes, listeners, programs or rules.
fn set_up(config: &Checked, namespace: &OwnedFd, rules: &PlaceRules) -> Result<SetUp, String> {
    let taken: Vec<Prefix> = rules.takes.iter().flat_map(|take| config.takes[*take].0.clone()).collect();
    // Before the routes: until then marked sockets of an earlier proxy go by TCP.
    let unmarked = bpf::unmark(config.config.mark);
    let without_route = intercept::add_routes(config.config.mark, &taken)?;
    for (ip, bits) in &without_route {
        crate::log(format_args!("connections to {ip}/{bits} are not taken: there is no route to {ip}"));
    }
    if rules.takes.is_empty() {
        return Ok((None, (0..config.workers).map(|_| Vec::new()).collect(), Vec::new()));
    }
    let mut listeners = Vec::new();
    for _ in 0..config.workers {
        let failed = |e: std::io::Error| format!("a listener cannot be made: {e} (CAP_NET_ADMIN is needed)");
        let v4 = listener(false).map_err(failed)?;
        // A kernel may be without IPv6.
        listeners.push(std::iter::once(v4).chain(listener(true).ok()).collect::<Vec<_>>());
    }
    let groups = intercept::groups(config, rules, &without_route)?;
    let by_bpf = || take_by_bpf(config, namespace, &groups, &listeners).map(Interception::Bpf);
    let by_nft = || take_by_nft(config, &groups, &listeners).map(Interception::Nft);
    let taken_by = match config.config.intercept {
        InterceptBy::Bpf => (by_bpf()?, "the configuration asks for it".into()),
        InterceptBy::Nft => (by_nft()?, "the configuration asks for it".into()),
        InterceptBy::Auto => match by_bpf() {
            Ok(programs) => (programs, "the programs could be loaded".into()),
            Err(without) => match by_nft() {
                Ok(rules) => (rules, without),
                Err(why) => return Err(format!("{without}; and instead: {why}")),
            },
        },
    };
    match (unmarked, &taken_by) {
        (Ok(0), _) | (Err(_), (Interception::Nft(_), _)) => {}
        (Ok(count), _) => crate::log(format_args!("{count} sockets that an earlier proxy had marked go on by TCP")),
        (Err(why), _) => crate::log(format_args!("sockets that an earlier proxy has marked keep their mark: {why}")),
    }
    let routed = taken.into_iter().filter(|prefix| !without_route.contains(prefix)).collect();
    Ok((Some(taken_by), listeners, routed))
}

fn take_by_bpf(
    config: &Checked,
    namespace: &OwnedFd,
    groups: &[TakenOfGroup],
    listeners: &[Vec<OwnedFd>],
) -> Result<Vec<BpfPrograms>, String> {
    let cookie =
        sys::namespace_cookie(&listeners[0][0]).map_err(|e| format!("SO_NETNS_COOKIE: {e} (Linux 5.14 or newer)"))?;
    let mut all = Vec::new();
    for TakenOfGroup { path, taken } in groups {
        let group = path.as_deref().map_or_else(bpf::root_group, open)?;
        let mut programs = BpfPrograms::load(namespace, cookie, config.config.mark, config.workers, &group)?;
        programs.group.clone_from(path);
        for (prefixes, ports) in taken {
            prefixes.iter().try_for_each(|prefix| programs.take(*prefix, ports))?;
        }
        for (worker, own) in (0..).zip(listeners) {
            for (v6, listener) in [false, true].into_iter().zip(own) {
                programs.listen(worker, v6, listener)?;
            }
        }
        all.push(programs);
    }
    Ok(all)
}

fn take_by_nft(config: &Checked, groups: &[TakenOfGroup], listeners: &[Vec<OwnedFd>]) -> Result<NftSteering, String> {
    let is_closed = config.config.encrypt == EncryptLinks::Only;
    NftSteering::load((config.config.mark, is_closed), listeners, &intercept::policies(groups)?)
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
        let asked = |held: u64, rules: &str| {
            let text = format!("name='a'\nlisten='10.0.0.1:7400'\nkeys='k'\n{rules}");
            missing(held, &crate::config::ProxyConfig::parse(&text).unwrap())
        };
        let (take, serve) = ("[[take]]\nto=['10.0.0.2']\nports='1'\n", "[[serve]]\nto=['10.0.0.1']\n");
        assert_eq!(asked(0, take), ["CAP_NET_ADMIN"]);
        assert_eq!(asked(0, serve), ["CAP_NET_ADMIN"]);
        assert_eq!(asked(1 << 12, &format!("{serve}namespace='/n'\n")), ["CAP_SYS_ADMIN"]);
        let all = ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_BPF"];
        assert_eq!(asked(0, &format!("intercept='bpf'\n{take}")), all);
        assert_eq!(asked(0, &format!("intercept='bpf'\n{take}cgroup='/g'\n")), ["CAP_NET_ADMIN", "CAP_BPF"]);
        assert_eq!(asked(0, &format!("intercept='bpf'\n{serve}")), ["CAP_NET_ADMIN"]);
        assert!(asked(0, "").is_empty() && asked(u64::MAX, &format!("intercept='bpf'\n{take}")).is_empty());
    }
}
