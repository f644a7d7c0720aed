//! Connections of tools to a daemon, and its devices.

use crate::context::ClientContext;
use crate::error::{ClientError, Result};
use crate::raw::lock::HeldSignals;
use crate::raw::place::HostPlace;
use crate::raw::program_name;
use burst_control::activity::{HostReport, QpPage, QpUse, WorkHistogram, WorkerUse};
use burst_control::cm::CmAddr;
use burst_control::failures::{FailurePage, FailureQuery, FailureRecord, KeptPackets, PacketOwner};
use burst_control::monitor::{CcPeer, CmConnection, CmCursor, CmStats, DaemonCrashes, LogState, UserPage, UserUse};
use burst_control::urma::{UrmaCursor, UrmaNodeInfo, UrmaPage};
use burst_control::{Client, ControlError, Counter, DaemonInfo, DeviceInfo, Request, Response, socket_path};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A connection to a daemon for requests that need no context: version, devices, counters, connections.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
    client: Client,
}

impl Daemon {
    /// Connects to the daemon behind `socket`, under this program's name.
    ///
    /// # Errors
    /// [`ControlError::Connect`] when no daemon listens there, [`ControlError::Version`] when it speaks another version.
    pub fn connect(socket: &Path) -> Result<Daemon> {
        Daemon::connect_as(socket, &program_name())
    }

    /// As [`Daemon::connect`], under a name for the daemon's log.
    ///
    /// # Errors
    /// As [`Daemon::connect`].
    pub fn connect_as(socket: &Path, program: &str) -> Result<Daemon> {
        Ok(Daemon { socket: socket.to_owned(), client: Client::connect(socket, program)? })
    }

    /// As [`Daemon::connect_as`], to a host that must answer each request within `time`.
    ///
    /// # Errors
    /// As [`Daemon::connect`]; an I/O error when no answer comes.
    pub fn connect_within(socket: &Path, program: &str, time: Duration) -> Result<Daemon> {
        Ok(Daemon { socket: socket.to_owned(), client: Client::connect_within(socket, program, Some(time))? })
    }

    /// Opens a host in this process, with the settings of its environment.
    ///
    /// # Errors
    /// [`ControlError::Connect`], with the host's sentence.
    pub fn in_process() -> Result<Daemon> {
        let client = HostPlace::InProcess.connect(&program_name(), &HeldSignals::hold())?;
        Ok(Daemon { socket: PathBuf::new(), client })
    }

    /// Connects to the first daemon that answers: at `BURST_SOCKET` if that is set, else at the places of
    /// [`socket_path::candidates`].
    ///
    /// # Errors
    /// The last failure, when no daemon answers.
    pub fn find() -> Result<Daemon> {
        let mut last = None;
        for socket in socket_path::candidates() {
            match Daemon::connect(&socket) {
                Ok(daemon) => return Ok(daemon),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or(ClientError::Control(ControlError::Closed)))
    }

    /// The socket of the daemon; empty for a host in this process.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The daemon's description at the time of the connection.
    pub fn info(&self) -> &DaemonInfo {
        self.client.daemon()
    }

    fn ask(&mut self, request: &Request) -> Result<Response> {
        Ok(self.client.call(request, &[])?.response)
    }

    /// The daemon's present description.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn info_now(&mut self) -> Result<DaemonInfo> {
        match self.ask(&Request::DaemonInfo)? {
            Response::Daemon(info) => Ok(info),
            _ => Err(ClientError::Unexpected("no description of the daemon")),
        }
    }

    /// The devices as they are now, with their addresses and limits.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>> {
        match self.ask(&Request::ListDevices)? {
            Response::Devices(devices) => Ok(devices),
            _ => Err(ClientError::Unexpected("no list of devices")),
        }
    }

    /// The counters: traffic, and one for each reason of a drop or an error.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn counters(&mut self) -> Result<Vec<Counter>> {
        match self.ask(&Request::Stats)? {
            Response::Stats(counters) => Ok(counters),
            _ => Err(ClientError::Unexpected("no counters")),
        }
    }

    /// Impairs the frames of a device's port for a time, in place of an earlier call: `options` as in a port's specification,
    /// `loss=1%,delay=100us`. Without options the impairment ends.
    ///
    /// # Errors
    /// When the daemon refuses (the user is neither root nor the daemon's, or an option is wrong), or the connection fails.
    pub fn impair(&mut self, device: u32, options: &str, time: Duration) -> Result<()> {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match self.ask(&Request::Impair { device, options: options.to_owned(), time_ns })? {
            Response::Done => Ok(()),
            _ => Err(ClientError::Unexpected("no answer to an impairment")),
        }
    }

    /// Captures the packets of a device, of each the first `snap` bytes of UDP payload, until the sockets are closed: one for
    /// each worker of the daemon, with messages as in [`burst_control::capture`].
    ///
    /// # Errors
    /// When the daemon refuses (the user is neither root nor the daemon's), or the connection fails.
    pub fn capture(&mut self, device: u32, snap: u16) -> Result<Vec<OwnedFd>> {
        let reply = self.client.call(&Request::Capture { device, snap }, &[])?;
        match reply.response {
            Response::Done => Ok(reply.fds),
            _ => Err(ClientError::Unexpected("no answer to a capture")),
        }
    }

    /// What the programs of each user use of the daemon's limited resources, as far as this user may see it, and the number of
    /// the other users.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn users(&mut self) -> Result<(Vec<UserUse>, u32)> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let Response::Users(UserPage { users, hidden, next }) = self.ask(&Request::Users { from })? else {
                return Err(ClientError::Unexpected("no list of users"));
            };
            all.extend(users);
            match next {
                Some(next) if next > from => from = next,
                Some(_) => return Err(ClientError::Unexpected("a list of users that does not end")),
                None => return Ok((all, hidden)),
            }
        }
    }

    /// The nodes of a program of URMA, with all their channels.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn urma_nodes(&mut self) -> Result<Vec<UrmaNodeInfo>> {
        let (mut all, mut from) = (Vec::<UrmaNodeInfo>::new(), UrmaCursor::default());
        loop {
            let Response::Urma(UrmaPage { node, next }) = self.ask(&Request::Urma { from })? else {
                return Err(ClientError::Unexpected("no node of URMA"));
            };
            if let Some(node) = node {
                match all.last_mut().filter(|last| last.eid == node.eid) {
                    Some(last) => last.channels.extend(node.channels),
                    None => all.push(node),
                }
            }
            match next {
                Some(next) if next > from => from = next,
                Some(_) => return Err(ClientError::Unexpected("a list of channels that does not end")),
                None => return Ok(all),
            }
        }
    }

    /// Whether a supervisor runs the daemon, and which daemons have fallen.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn crashes(&mut self) -> Result<DaemonCrashes> {
        match self.ask(&Request::Crashes)? {
            Response::Crashes(crashes) => Ok(crashes),
            _ => Err(ClientError::Unexpected("no list of crashes")),
        }
    }

    /// The newest records of failures that this user may see, at most `most`: of a process or a queue pair (`about`), or all;
    /// and the number of other users' records.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn failures(&mut self, about: Option<u32>, most: usize) -> Result<(Vec<FailureRecord>, u32)> {
        let mut all = Vec::new();
        loop {
            let skip = all.len() as u32;
            let Response::Failures(page) = self.ask(&Request::Failures(FailureQuery { about, skip }))? else {
                return Err(ClientError::Unexpected("no records of failures"));
            };
            let FailurePage { records, hidden, has_more } = page;
            let is_last = !has_more || records.is_empty();
            all.extend(records);
            if is_last || all.len() >= most {
                all.truncate(most);
                return Ok((all, hidden));
            }
        }
    }

    /// The packets of a queue pair of this user that the host has kept, up to its failure or until now, or of a Jetty that has
    /// failed.
    ///
    /// # Errors
    /// When the host keeps no packets or this user has no such object, or the connection fails.
    pub fn kept_packets(&mut self, of: PacketOwner) -> Result<KeptPackets> {
        match self.ask(&Request::KeptPackets { of })? {
            Response::KeptPackets(packets) => Ok(packets),
            _ => Err(ClientError::Unexpected("no packets of a queue pair")),
        }
    }
    /// Histograms of all workers together, in the order of [`burst_control::activity::WORK_HISTOGRAMS`].
    ///
    /// # Errors
    /// When the connection fails.
    pub fn histograms(&mut self) -> Result<Vec<WorkHistogram>> {
        match self.ask(&Request::Histograms)? {
            Response::Histograms(histograms) => Ok(histograms),
            _ => Err(ClientError::Unexpected("no histograms of workers")),
        }
    }

    /// Time and traffic of each worker.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn workers(&mut self) -> Result<Vec<WorkerUse>> {
        match self.ask(&Request::Workers)? {
            Response::Workers(workers) => Ok(workers),
            _ => Err(ClientError::Unexpected("no list of workers")),
        }
    }

    /// All queue pairs that this user may see, and the number of the others.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn queue_pairs(&mut self) -> Result<(Vec<QpUse>, u64)> {
        let (mut all, mut others) = (Vec::new(), 0);
        let mut from = CmCursor::default();
        loop {
            let Response::QueuePairs(QpPage { queue_pairs, hidden, next }) = self.ask(&Request::QueuePairs { from })?
            else {
                return Err(ClientError::Unexpected("no list of queue pairs"));
            };
            all.extend(queue_pairs);
            others += u64::from(hidden);
            match next {
                Some(next) if next > from => from = next,
                Some(_) => return Err(ClientError::Unexpected("a list of queue pairs that does not end")),
                None => return Ok((all, others)),
            }
        }
    }

    /// All that the daemon reports to this user: one question for each part, so that the parts are some milliseconds apart.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn report(&mut self) -> Result<HostReport> {
        let info = self.info_now()?;
        let (queue_pairs, hidden_queue_pairs) = self.queue_pairs()?;
        Ok(HostReport {
            version: info.version,
            uid: info.uid,
            uptime_s: info.uptime_s,
            contexts: info.contexts,
            crashes: self.crashes()?.crashes,
            devices: self.devices()?,
            counters: self.counters()?,
            workers: self.workers()?,
            histograms: self.histograms()?,
            queue_pairs,
            hidden_queue_pairs,
            users: self.users()?.0,
            peers: self.congestion()?.1,
            cm: self.cm_stats()?,
        })
    }

    /// Histograms of connection setup.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn cm_stats(&mut self) -> Result<CmStats> {
        match self.ask(&Request::CmStats)? {
            Response::CmStats(stats) => Ok(stats),
            _ => Err(ClientError::Unexpected("no histograms of connection setup")),
        }
    }

    /// The congestion control in force, the peer addresses that this user may see, and the number of the others.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn congestion(&mut self) -> Result<(String, Vec<CcPeer>, u64)> {
        let (mut all, mut others) = (Vec::new(), 0);
        let mut from = CmCursor::default();
        loop {
            let Response::Cc { cc, peers, hidden, next } = self.ask(&Request::Cc { from })? else {
                return Err(ClientError::Unexpected("no list of peers"));
            };
            all.extend(peers);
            others += u64::from(hidden);
            match next {
                Some(next) if next > from => from = next,
                _ => return Ok((cc, all, others)),
            }
        }
    }

    /// Changes the congestion control of one kind of peers (standard, burst, loopback) or of all: `cc` as the key of the
    /// configuration, `dcqcn:rpg_ai_rate=100M`.
    ///
    /// # Errors
    /// When the daemon refuses (the user is neither root nor the daemon's, or a name or value is wrong), or the connection fails.
    pub fn set_congestion(&mut self, kind: Option<&str>, cc: &str) -> Result<()> {
        match self.ask(&Request::SetCc { kind: kind.map(str::to_owned), cc: cc.to_owned() })? {
            Response::Done => Ok(()),
            _ => Err(ClientError::Unexpected("no answer to a change of congestion control")),
        }
    }

    /// The levels of the daemon's log. With `levels` they are changed first: `host=debug port=warn`, one level for all, or
    /// `default`.
    ///
    /// # Errors
    /// When the daemon refuses (the user is neither root nor the daemon's, or a word is wrong), or the connection fails.
    pub fn log(&mut self, levels: Option<&str>) -> Result<LogState> {
        match self.ask(&Request::Log { levels: levels.map(str::to_owned) })? {
            Response::Log(state) => Ok(state),
            _ => Err(ClientError::Unexpected("no levels of the log")),
        }
    }

    /// All connections and listeners of the connection manager that this user may see, and the number of the others.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn cm_connections(&mut self) -> Result<(Vec<CmConnection>, u64)> {
        let (mut all, mut others) = (Vec::new(), 0);
        let mut from = CmCursor::default();
        loop {
            let Response::CmConnections { connections, hidden, next } = self.ask(&Request::CmConnections { from })?
            else {
                return Err(ClientError::Unexpected("no list of connections"));
            };
            all.extend(connections);
            others += u64::from(hidden);
            match next {
                Some(next) if next > from => from = next,
                Some(_) => return Err(ClientError::Unexpected("a list of connections that does not end")),
                None => return Ok((all, others)),
            }
        }
    }
}

/// A device of a daemon.
#[derive(Clone, Debug)]
pub struct Device {
    socket: PathBuf,
    info: DeviceInfo,
}

impl Device {
    /// The devices of the first daemon that answers ([`Daemon::find`]).
    ///
    /// # Errors
    /// When no daemon answers.
    pub fn list() -> Result<Vec<Device>> {
        let mut daemon = Daemon::find()?;
        let devices = daemon.devices()?;
        Ok(devices.into_iter().map(|info| Device { socket: daemon.socket.clone(), info }).collect())
    }

    /// The device with this name (`burst0`).
    ///
    /// # Errors
    /// When no daemon answers, or it has no such device.
    pub fn by_name(name: &str) -> Result<Device> {
        let found = Device::list()?.into_iter().find(|device| device.info.name == name);
        found.ok_or(ClientError::Invalid("the daemon has no device of this name"))
    }

    /// Name, addresses, link state and limits, as they were when the device was listed.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Opens the device.
    ///
    /// # Errors
    /// When the daemon refuses, or has ended.
    pub fn open(&self) -> Result<ClientContext> {
        ClientContext::open(&self.socket, self.info.index)
    }

    /// The address that peers connect to: the device's first GID.
    pub fn address(&self) -> Option<std::net::IpAddr> {
        let gid = std::net::Ipv6Addr::from(self.info.gids.first()?.gid);
        Some(gid.to_ipv4_mapped().map_or(gid.into(), Into::into))
    }
}

/// A socket address as the connection manager takes it.
pub(crate) fn cm_addr(addr: std::net::SocketAddr) -> CmAddr {
    let scope = match addr {
        std::net::SocketAddr::V6(v6) => v6.scope_id(),
        std::net::SocketAddr::V4(_) => 0,
    };
    CmAddr { ip: addr.ip(), port: addr.port(), scope }
}
