//! Connections by the connection manager: a server listens at an IP address and port, a client connects to it.
//!
//! Both ends bring a queue pair in state INIT; the daemon moves it to RTS when the connection is established, and to ERR when it
//! ends. Each id has an event channel of its own, so that ids can be used from different threads.

use crate::context::{ClientContext, read_record};
use crate::device::cm_addr;
use crate::error::{ClientError, Result};
use crate::qp::QueuePair;
use crate::raw::place::HostPlace;
use crate::raw::session::CmControl;
use burst_base::verbs::QpType;
use burst_control::Request;
use burst_control::cm::{CmAddr, CmCommand, CmData, CmEvent, CmEventKind, CmId, CmQp, ConnParam, Ece, PortSpace};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Timeout for the resolution of address and route.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Reason of a REJ: rejected by the peer's program (IBA table 112).
const REASON_CONSUMER: u16 = 28;
/// Maximum private data in bytes of a request, an accept and a rejection (rdma_connect(3), IBA 12.6).
const REQ_DATA_MAX: usize = 56;
const REP_DATA_MAX: usize = 196;
const REJ_DATA_MAX: usize = 148;

/// A process's connection to the connection manager of a daemon. Clones share it.
#[derive(Clone, Debug)]
pub struct ConnectionManager(Arc<ManagerShared>);

#[derive(Debug)]
struct ManagerShared {
    control: CmControl,
    /// Last number given to an id or a channel; both count upwards.
    last_number: AtomicU32,
}

/// An id at the daemon with its event channel. Dropping it ends both.
#[derive(Debug)]
struct IdOwner {
    manager: ConnectionManager,
    id: CmId,
    channel: u32,
    pipe: OwnedFd,
    /// Number of the id's events that were read.
    read: AtomicU32,
}

impl Drop for IdOwner {
    fn drop(&mut self) {
        let control = &self.manager.0.control;
        // Errors mean that the daemon has ended, and the id with it.
        let _ = control.ask(vec![CmCommand::Destroy { id: self.id, read: self.read.load(Ordering::Relaxed) }]);
        let _ = control.call(&Request::CmCloseChannel { channel: self.channel });
    }
}

impl ConnectionManager {
    /// Connects to the daemon behind a socket ([`crate::Daemon::socket`]).
    ///
    /// # Errors
    /// When no daemon answers.
    pub fn open(socket: &Path) -> Result<ConnectionManager> {
        let shared = ManagerShared {
            control: CmControl::open(&HostPlace::Socket(socket.to_owned()))?,
            last_number: AtomicU32::new(0),
        };
        Ok(ConnectionManager(Arc::new(shared)))
    }

    fn number(&self) -> u32 {
        self.0.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn channel(&self) -> Result<(u32, OwnedFd)> {
        let channel = self.number();
        Ok((channel, self.0.control.open_channel(channel)?))
    }

    fn create_id(&self) -> Result<IdOwner> {
        let (channel, pipe) = self.channel()?;
        let id = self.number();
        self.0.control.ask(vec![CmCommand::Create { id, channel, ps: PortSpace::Tcp, qp_type: QpType::Rc }])?;
        Ok(IdOwner { manager: self.clone(), id, channel, pipe, read: AtomicU32::new(0) })
    }

    /// Listens at an address of a device, or at all addresses (`0.0.0.0`, `[::]`); port 0 takes a free port.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, or when the daemon has ended.
    pub fn listen(&self, addr: SocketAddr) -> Result<ConnectionListener> {
        let id = self.create_id()?;
        let bind = CmCommand::Bind { id: id.id, addr: cm_addr(addr) };
        let route = self.0.control.ask(vec![bind])?;
        self.0.control.ask(vec![CmCommand::Listen { id: id.id, backlog: 0 }])?;
        let burst_control::cm::CmReply::Route(route) = route else {
            return Err(ClientError::Unexpected("a bound id without address"));
        };
        let local = route.src.map(socket_addr).ok_or(ClientError::Unexpected("a bound id without address"))?;
        Ok(ConnectionListener { id, local })
    }

    /// Connects a queue pair to a listening server, with up to 56 bytes of private data for it.
    ///
    /// # Errors
    /// [`ClientError::Connection`] when the server refuses or cannot be reached; [`ClientError::TimedOut`].
    pub fn connect(&self, to: SocketAddr, qp: &QueuePair, data: &[u8], timeout: Duration) -> Result<ConnectionId> {
        let id = self.create_id()?;
        let begin = Instant::now();
        let timeout_ms = RESOLVE_TIMEOUT.min(timeout).as_millis() as u32;
        let resolve = CmCommand::ResolveAddr { id: id.id, src: None, dst: cm_addr(to), timeout_ms };
        self.0.control.ask(vec![resolve])?;
        id.expect(CmEventKind::AddrResolved, timeout)?;
        self.0.control.ask(vec![CmCommand::ResolveRoute { id: id.id, timeout_ms }])?;
        id.expect(CmEventKind::RouteResolved, timeout.saturating_sub(begin.elapsed()))?;
        let data = private_data(data, REQ_DATA_MAX)?;
        self.0.control.ask(vec![CmCommand::Connect { id: id.id, qp: Some(named(qp)), param: PARAM, data }])?;
        let event = id.expect(CmEventKind::Established, timeout.saturating_sub(begin.elapsed()))?;
        qp.set_connected();
        Ok(ConnectionId { id, peer: event.route.dst.map(socket_addr), data: event.data })
    }
}

impl ClientContext {
    /// The connection manager of this context's daemon.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn connection_manager(&self) -> Result<ConnectionManager> {
        ConnectionManager::open(self.socket())
    }
}

fn socket_addr(addr: CmAddr) -> SocketAddr {
    SocketAddr::new(addr.ip, addr.port)
}

/// The queue pair for a command to the connection manager.
fn named(qp: &QueuePair) -> CmQp {
    CmQp { token: qp.pd().context().raw().token(), qpn: qp.number() }
}

/// Parameters of a connection: as many READs in flight as both devices allow, and seven retries.
const PARAM: ConnParam = ConnParam {
    responder_resources: u8::MAX,
    initiator_depth: u8::MAX,
    flow_control: false,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: false,
    qpn: 0,
    qkey: 0,
    ece: Ece::NONE,
};

fn private_data(data: &[u8], data_max: usize) -> Result<CmData> {
    let data = CmData::new(data).filter(|_| data.len() <= data_max);
    data.ok_or(ClientError::Invalid("the private data does not fit into the message"))
}

impl IdOwner {
    /// The next event of the id's channel.
    fn event(&self, timeout: Duration) -> Result<CmEvent> {
        let begin = Instant::now();
        let mut record = [0; CmEvent::BYTES];
        while !read_record(self.pipe.as_fd(), &mut record, timeout.saturating_sub(begin.elapsed()))? {
            if begin.elapsed() >= timeout {
                return Err(ClientError::TimedOut(timeout));
            }
        }
        self.read.fetch_add(1, Ordering::Relaxed);
        CmEvent::from_bytes(&record).ok_or(ClientError::Unexpected("an unknown event of the connection manager"))
    }

    /// Waits for the next event, which must be of this kind.
    fn expect(&self, kind: CmEventKind, timeout: Duration) -> Result<CmEvent> {
        let event = self.event(timeout)?;
        if event.kind == kind {
            return Ok(event);
        }
        let detail = event.sentence().unwrap_or_else(|| format!("status {}", event.status));
        Err(ClientError::Connection(format!("{:?} instead of {kind:?}: {detail}", event.kind)))
    }
}

/// A server's listening id.
#[derive(Debug)]
pub struct ConnectionListener {
    id: IdOwner,
    local: SocketAddr,
}

impl ConnectionListener {
    /// The address, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for the next request of a client.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`]; when the daemon has ended.
    pub fn next_request(&self, timeout: Duration) -> Result<ConnectRequest> {
        let event = self.id.expect(CmEventKind::ConnectRequest, timeout)?;
        let manager = self.id.manager.clone();
        // The new id gets its own channel.
        let (channel, pipe) = manager.channel()?;
        let id = IdOwner { manager, id: event.id, channel, pipe, read: AtomicU32::new(0) };
        id.manager.0.control.ask(vec![CmCommand::Migrate { id: event.id, channel }])?;
        Ok(ConnectRequest { id, peer: event.route.dst.map(socket_addr), data: event.data })
    }
}

impl AsFd for ConnectionListener {
    /// Readable while requests are unread.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.pipe.as_fd()
    }
}

/// A client's request. Dropping it refuses the client.
#[derive(Debug)]
pub struct ConnectRequest {
    id: IdOwner,
    peer: Option<SocketAddr>,
    data: CmData,
}

impl ConnectRequest {
    /// The client's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The client's private data, padded with zeros to 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// Accepts the client with up to 196 bytes of private data, and waits until the connection is established.
    ///
    /// # Errors
    /// [`ClientError::Connection`] when the client has given up; [`ClientError::TimedOut`].
    pub fn accept(self, qp: &QueuePair, data: &[u8], timeout: Duration) -> Result<ConnectionId> {
        let ConnectRequest { id, peer, data: request } = self;
        let data = private_data(data, REP_DATA_MAX)?;
        id.manager.0.control.ask(vec![CmCommand::Accept { id: id.id, qp: Some(named(qp)), param: PARAM, data }])?;
        id.expect(CmEventKind::Established, timeout)?;
        qp.set_connected();
        Ok(ConnectionId { id, peer, data: request })
    }

    /// Refuses the client with up to 148 bytes of private data.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn reject(self, data: &[u8]) -> Result<()> {
        let data = CmData::new(data).filter(|_| data.len() <= REJ_DATA_MAX);
        let data = data.ok_or(ClientError::Invalid("the private data does not fit into the message"))?;
        let reject = CmCommand::Reject { id: self.id.id, reason: REASON_CONSUMER, data };
        self.id.manager.0.control.ask(vec![reject]).map(drop)
    }
}

/// An established connection. Dropping it disconnects.
#[derive(Debug)]
pub struct ConnectionId {
    id: IdOwner,
    peer: Option<SocketAddr>,
    data: CmData,
}

impl ConnectionId {
    /// The peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The peer's private data, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// Ends the connection: this end's queue pair goes to ERR, its posted requests complete in error, and the peer is notified.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn disconnect(&self) -> Result<()> {
        self.id.manager.0.control.ask(vec![CmCommand::Disconnect { id: self.id.id }]).map(drop)
    }

    /// Waits until the connection has ended, by either side; then this end's queue pair goes to ERR as well.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`]; when the daemon has ended.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<()> {
        self.id.expect(CmEventKind::Disconnected, timeout)?;
        self.disconnect()
    }
}

impl AsFd for ConnectionId {
    /// Readable when the connection has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.pipe.as_fd()
    }
}
