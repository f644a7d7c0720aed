//! What `burst ls` and `stats` see of the program: all its nodes, by one socket of the process
//! ([`burst_control::inspection`]). The keeper of one node serves it; when that node ends, the keeper of another one does.
//!
//! The file is removed when its keeper ends, or the process ([`tool_socket`]).

use crate::eids::DEVICE_NAME;
use crate::host::UrmaHost;
use burst_base::gid::gid_of;
use burst_base::{Nanos, Reason};
use burst_control::inspection::{InspectedHost, InspectionSocket};
use burst_control::monitor::{CC_PAGE, CmCursor};
use burst_control::socket_path::ProgramKind;
use burst_control::urma::{UrmaCursor, UrmaPage};
use burst_control::{Counter, DaemonInfo, Refusal, Reply, Request, Response};
use burst_ffi::tool_socket;
use burst_peer::credentials::PeerCredentials;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// The process whose keeper has the socket; 0: none. A child after fork sees its parent's number, which is not its own.
static SERVED_BY: AtomicU32 = AtomicU32::new(0);

/// A keeper's part in the socket.
pub struct UrmaInspection {
    pid: u32,
    start: Instant,
    socket: Option<InspectionSocket<()>>,
    /// This keeper has tried to make the socket.
    has_tried: bool,
}

impl UrmaInspection {
    /// A part of this process's keepers.
    pub fn new() -> UrmaInspection {
        UrmaInspection { pid: std::process::id(), start: Instant::now(), socket: None, has_tried: false }
    }

    /// Takes the socket over if no keeper of this process has it. Without it the program runs as well.
    pub fn take_over(&mut self) {
        let served_by = SERVED_BY.load(Ordering::Relaxed);
        if self.has_tried || served_by == self.pid {
            return;
        }
        // Pairs with the release in `drop`: the former keeper has removed the file.
        if SERVED_BY.compare_exchange(served_by, self.pid, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        self.has_tried = true;
        self.socket = if watch_process() { InspectionSocket::open(ProgramKind::Urma).ok() } else { None };
        match &self.socket {
            Some(socket) => tool_socket::note(socket.path(), socket.listener()),
            None => SERVED_BY.store(0, Ordering::Release),
        }
    }

    /// Descriptors to watch.
    pub fn fds(&self) -> Vec<RawFd> {
        self.socket.as_ref().map(InspectionSocket::fds).unwrap_or_default()
    }

    /// Whether there is a connection, which may have to be ended because it is silent.
    pub fn has_clients(&self) -> bool {
        self.socket.as_ref().is_some_and(InspectionSocket::has_clients)
    }

    /// Answers questions.
    pub fn serve(&mut self) {
        // While an address is being opened, questions wait, not the keeper.
        let Some(socket) = &mut self.socket else { return };
        let Some(hosts) = UrmaHost::try_all() else { return };
        let now = Nanos(self.start.elapsed().as_nanos() as u64);
        socket.serve(&mut Nodes { hosts, pid: self.pid, start: self.start }, now);
    }
}

impl Drop for UrmaInspection {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        tool_socket::remove();
        drop(socket);
        SERVED_BY.store(0, Ordering::Release);
    }
}

/// Installs the handlers of fork and exit, once. False if there is no memory.
fn watch_process() -> bool {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return true;
    }
    // SAFETY: functions that exist as long as the library, whose threads run until the process ends.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 && libc::atexit(at_exit) == 0 }
}

unsafe extern "C" fn in_child() {
    tool_socket::close_in_child();
}

extern "C" fn at_exit() {
    tool_socket::remove();
    UrmaHost::try_all().into_iter().flatten().for_each(|host| host.leave());
}

/// The nodes of the process, while they are asked about.
struct Nodes {
    hosts: Vec<Arc<UrmaHost>>,
    pid: u32,
    start: Instant,
}

impl InspectedHost for Nodes {
    type Visitor = ();

    fn admit(&mut self, _peer: PeerCredentials) -> Option<()> {
        Some(())
    }

    fn answer(&mut self, (): &mut (), request: Request) -> Option<(Reply, Vec<OwnedFd>)> {
        let result = match request {
            Request::Hello { .. } | Request::DaemonInfo => Ok(Response::Daemon(self.info())),
            Request::ListDevices => Ok(Response::Devices(Vec::new())),
            Request::Stats => Ok(Response::Stats(self.counters())),
            Request::Urma { from } => Ok(Response::Urma(self.page(from))),
            Request::Cc { from } => Ok(self.congestion(from)),
            _ => {
                let sentence = "a program of URMA knows nothing of this".to_owned();
                Err(Refusal { errno: libc::EOPNOTSUPP, sentence })
            }
        };
        Some((Reply { new_segments: 0, result }, Vec::new()))
    }

    fn leave(&mut self, (): ()) {}
}

impl Nodes {
    fn info(&self) -> DaemonInfo {
        // SAFETY: has no conditions.
        let uid = unsafe { libc::geteuid() };
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: self.pid,
            uid,
            uptime_s: self.start.elapsed().as_secs(),
            workers: 0,
            contexts: self.hosts.len() as u32,
        }
    }

    /// The counters of all nodes together: they are of one device.
    fn counters(&self) -> Vec<Counter> {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for host in &self.hosts {
            let mut inner = host.lock();
            let counted = inner.own().counters().snapshot();
            sums.resize(counted.len(), ("", 0));
            for (sum, (name, value)) in sums.iter_mut().zip(counted) {
                *sum = (name, sum.1 + value);
            }
            // Reasons come last, in order.
            let reasons = sums.len() - Reason::COUNT;
            for (reason, count) in &inner.reports.counts {
                sums[reasons + reason.index()].1 += count;
            }
        }
        let sums = sums.into_iter();
        sums.map(|(name, value)| Counter { name: name.to_owned(), device: device_name(), value }).collect()
    }

    /// A page of the peers of all nodes. The cursor's worker is a node, by its place in the list of addresses.
    fn congestion(&self, from: CmCursor) -> Response {
        let mut hosts: Vec<&Arc<UrmaHost>> = self.hosts.iter().collect();
        hosts.sort_by_key(|host| gid_of(host.address));
        let CmCursor { mut worker, mut slot } = from;
        let (mut cc, mut peers) = (String::new(), Vec::new());
        while (worker as usize) < hosts.len() && peers.len() < CC_PAGE {
            let page = hosts[worker as usize].lock().own().cc_page(slot, CC_PAGE - peers.len());
            let Some((in_force, page, next)) = page else { break };
            cc = in_force;
            peers.extend(page);
            (worker, slot) = next.map_or((worker + 1, 0), |slot| (worker, slot));
        }
        let next = ((worker as usize) < hosts.len()).then_some(CmCursor { worker, slot });
        Response::Cc { cc, peers, hidden: 0, next }
    }

    /// The first node from the cursor on, and a page of its channels.
    fn page(&self, from: UrmaCursor) -> UrmaPage {
        let nodes = self.hosts.iter().map(|host| (gid_of(host.address), host)).filter(|(eid, _)| *eid >= from.eid);
        let Some((_, host)) = nodes.min_by_key(|(eid, _)| *eid) else { return UrmaPage::default() };
        host.lock().own().page(&device_name(), from)
    }
}

fn device_name() -> String {
    DEVICE_NAME.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::urma::UrmaNodeInfo;
    use burst_control::{Client, socket_path};
    use burst_ubwire::TaOpcode;
    use burst_urma::{JettyConfig, JfsWr, SegmentConfig, WrData, access};
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    /// A host at a loopback address that no other test uses.
    fn host(last: u8) -> Arc<UrmaHost> {
        let pid = std::process::id();
        UrmaHost::of(IpAddr::V4(Ipv4Addr::new(127, (pid >> 8) as u8 | 1, pid as u8, last))).expect("opens")
    }

    /// A tool's connection to this process.
    fn connect() -> Client {
        let path = socket_path::program_socket(ProgramKind::Urma, std::process::id());
        let start = Instant::now();
        loop {
            match Client::connect_within(&path, "tool", Some(Duration::from_secs(20))) {
                Ok(client) => return client,
                // A keeper has not bound it yet, or has just ended.
                Err(why) => assert!(start.elapsed() < Duration::from_secs(20), "{why}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ask(request: &Request) -> Response {
        let start = Instant::now();
        loop {
            match connect().call(request, &[]) {
                Ok(reply) => return reply.response,
                // The keeper has ended with another test's host.
                Err(why) => assert!(start.elapsed() < Duration::from_secs(20), "{why}"),
            }
        }
    }

    /// The node of a host, as a tool sees it.
    fn seen(host: &UrmaHost) -> UrmaNodeInfo {
        let eid = gid_of(host.address);
        let Response::Urma(page) = ask(&Request::Urma { from: UrmaCursor { eid, peer: [0; 16] } }) else {
            panic!("a page")
        };
        page.node.filter(|node| node.eid == eid).expect("the node")
    }

    fn count(name: &str) -> u64 {
        let Response::Stats(counters) = ask(&Request::Stats) else { panic!("counters") };
        assert_eq!(counters.iter().filter(|c| c.name == name && c.device == "burst0").count(), 1);
        counters.iter().filter(|c| c.name == name).map(|c| c.value).sum()
    }

    #[test]
    fn tools_see_nodes_channels_and_reasons_of_the_process() {
        let (a, b) = (host(61), host(62));
        let memory = [0u8; 64];
        let config = SegmentConfig {
            addr: memory.as_ptr() as u64,
            len: 64,
            token: Some(7),
            access: access::READ | access::WRITE | access::ATOMIC,
        };
        let segment = {
            let mut there = b.lock();
            let token_id = there.own().node.register_segment(config).expect("room");
            let exported = there.own().node.export_segment(token_id).expect("registered");
            burst_urma::RemoteSegment { token: Some(8), ..exported }
        };
        assert_eq!((seen(&b).segments, seen(&b).jetties, seen(&b).channels.len()), (1, 0, 0));
        let before = count("ub_token");
        let jfc = {
            let mut inner = a.lock();
            let node = &mut inner.own().node;
            let jfc = node.create_jfc(8).expect("room");
            let jetty = node.create_jetty(JettyConfig::new(jfc, None)).expect("room");
            let segment = node.import_segment(segment).expect("room");
            let data = WrData::inline(&[1]).expect("short");
            let mut wr = JfsWr::new(TaOpcode::Write, data, 0);
            (wr.segment, wr.remote_addr) = (Some(segment), memory.as_ptr() as u64);
            inner.post_send(a.now(), jetty, &wr).expect("accepted");
            a.flush(&mut inner);
            jfc
        };
        let start = Instant::now();
        while a.lock().own().node.poll_jfc(jfc).is_none() {
            assert!(start.elapsed() < Duration::from_secs(20), "no completion");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(count("ub_token") > before && count("rx_packets") > 0, "the refusal has its name");
        let node = seen(&a);
        assert_eq!((node.jetties, node.jfcs, node.jfrs, node.segments), (1, 1, 0, 0));
        let [channel] = &node.channels[..] else { panic!("{node:?}") };
        assert_eq!((channel.peer, channel.is_open, channel.unanswered), (gid_of(b.address), true, 0));
        assert_ne!(channel.tpns[1], 0);
        let Response::Cc { peers, hidden, .. } = ask(&Request::Cc { from: CmCursor::default() }) else {
            panic!("peers")
        };
        let peer = peers.iter().find(|peer| peer.peer == b.address).expect("the channel's peer");
        assert_eq!((peer.queue_pairs, hidden), (0, 0));
        assert!(peer.channels > 0 && peer.window_bytes > 0 && peer.cc.starts_with("cubic"), "{peer:?}");
        let Err(refused) = connect().call(&Request::CmStats, &[]) else { panic!("a refusal") };
        assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    }

    #[test]
    fn a_page_without_nodes_is_the_last() {
        let nodes = Nodes { hosts: Vec::new(), pid: 1, start: Instant::now() };
        assert_eq!(nodes.page(UrmaCursor::default()), UrmaPage::default());
        assert_eq!(nodes.counters(), Vec::new());
        assert_eq!(UrmaCursor::behind([0xff; 16]), None);
    }
}
