//! Worker numbers lent to programs that run the engine themselves and share this host's addresses (`docs/in-process.md`).
//!
//! A program that holds a socket of an address can take the packets of others (`docs/threats.md`), so numbers are lent to
//! programs of the daemon's own user only, in its namespaces of users and of the network. A session has one number at most, until
//! it ends: then packets to the number come to worker 0, which answers for the queue pairs that the program has noted as
//! connected.
//!
//! The program is not trusted otherwise: its notes are read as those of a process that crashed
//! ([`burst_engine::tombstone_file`]), and queue pairs of other numbers or addresses in them are ignored.

use crate::authority::Caller;
use crate::host::Host;
use crate::options::HostOptions;
use crate::refusal::{refuse, system};
use crate::reply::ReplyParts;
use burst_base::verbs::QpType;
use burst_base::{DeviceId, Qpn, RtoMode};
use burst_cc::PeerKind;
use burst_control::lend::{LentCc, LentPort, LentWorker};
use burst_control::{FDS_MAX, Refusal, Request, Response};
use burst_engine::tombstone_file::TombstoneFile;
use burst_ledger::{Charge, Resource};
use burst_port::{LentSocket, PortSpec, can_lend};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Descriptors of the daemon for a number that is lent: the two files of notes, and the socket for mail.
const LEASE_DESCRIPTORS: u64 = 3;

/// The names in a store of descriptors of a worker's tombstone file: its records, and the PSNs.
pub(crate) fn tombstone_names(worker: u32) -> [String; 2] {
    [format!("tombstones {worker}"), format!("psns {worker}")]
}

/// What a host with a lent number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentIdentity {
    /// The worker number.
    pub number: u32,
    /// The lender's number in hellos.
    pub boot_id: u64,
}

/// The numbers that are lent, and the settings that borrowers get.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    /// Whether numbers are lent at all.
    is_on: bool,
    ports: Vec<PortSpec>,
    selective: bool,
    rto: RtoMode,
    window_bytes: u32,
    /// What the holders of numbers note, by number.
    lent: BTreeMap<usize, (TombstoneFile, Charge)>,
}

impl Lending {
    pub fn new(options: &HostOptions, ports: Vec<PortSpec>) -> Lending {
        Lending {
            is_on: options.lend,
            ports,
            selective: options.selective,
            rto: options.rto,
            window_bytes: options.window_bytes,
            lent: BTreeMap::new(),
        }
    }

    /// Whether a program has the worker number.
    pub fn is_lent(&self, number: usize) -> bool {
        self.lent.contains_key(&number)
    }
}

/// What a host with a lent number refuses, because it is the lender's: the beginning of a sentence.
pub(crate) fn is_lenders(request: &Request) -> Option<&'static str> {
    match request {
        Request::CmChannel { .. } | Request::CmCommandRing | Request::Cm { .. } => Some("connection management"),
        Request::AttachMcast { .. } => Some("multicast"),
        Request::OpenXrcd { .. } | Request::CreateTarget { .. } | Request::OpenQp { .. } => Some("XRC"),
        Request::CreateQp { init, .. } if matches!(init.qp_type, QpType::XrcSend | QpType::XrcRecv) => Some("XRC"),
        Request::UrmaOpen { .. } => Some("URMA"),
        Request::Lend => Some("lending"),
        _ => None,
    }
}

impl Host {
    /// Lends the lowest free worker number to a program.
    ///
    /// # Errors
    /// EOPNOTSUPP: this host lends nothing, or has ports of other kinds than `udp`; EPERM: another user, or another namespace;
    /// EBUSY: all numbers are lent; or the system's errno.
    pub(crate) fn lend(&mut self, caller: &Caller) -> Result<(usize, ReplyParts), Refusal> {
        self.may_lend(caller)?;
        let workers = self.workers().len();
        let free = (workers..=Qpn::WORKER_MASK as usize).find(|number| !self.lending.lent.contains_key(number));
        let Some(number) = free else {
            let all = Qpn::WORKER_MASK as usize + 1 - workers;
            return refuse(libc::EBUSY, format!("all {all} worker numbers that the daemon can lend are lent"));
        };
        let charge = caller.charge(&[(Resource::WorkerNumber, 1), (Resource::Descriptor, LEASE_DESCRIPTORS)])?;
        let file = TombstoneFile::create().map_err(system("make a tombstone file"))?;
        let files = duplicates(&file, number)?;
        let (ours, theirs) = mail_pair()?;
        let mut sockets = Vec::new();
        for device in 0..self.devices.len() {
            match self.on_worker(0, move |w, _| w.lend_number(DeviceId::from_index(device), number)) {
                Ok(lent) => sockets.extend(lent),
                Err(error) => {
                    self.on_worker(0, move |w, _| w.take_number_back(number));
                    return refuse(error.errno(), error.to_string());
                }
            }
        }
        if sockets.len() + files.len() + 1 > FDS_MAX {
            self.on_worker(0, move |w, _| w.take_number_back(number));
            let most = FDS_MAX - files.len() - 1;
            return refuse(libc::EOPNOTSUPP, format!("the daemon has more than {most} addresses, too many to lend"));
        }
        let boot_id = self.on_worker(0, move |w, _| {
            w.set_mail(number as u32, Some(ours));
            w.boot_id()
        });
        self.lending.lent.insert(number, (file, charge));
        let (names, fds): (Vec<String>, Vec<OwnedFd>) = sockets.into_iter().chain(files).unzip();
        let lent = self.lent_worker(number as u32, boot_id, names);
        Ok((number, ReplyParts::with_fds(Response::Lent(lent), std::iter::once(theirs).chain(fds).collect())))
    }

    /// # Errors
    /// One sentence for each reason.
    fn may_lend(&self, caller: &Caller) -> Result<(), Refusal> {
        if !self.lending.is_on {
            return refuse(
                libc::EOPNOTSUPP,
                "the daemon lends no worker numbers to programs: start it with --lend same-user, or run the program without lent mode",
            );
        }
        if let Some(port) = self.lending.ports.iter().find(|spec| !can_lend(spec)) {
            return refuse(libc::EOPNOTSUPP, format!("the port '{port}' cannot be lent: only ports of kind udp can"));
        }
        if !self.authority.is_owner(caller.process.uid) {
            let uid = caller.process.uid;
            return refuse(
                libc::EPERM,
                format!("user {uid} is not the daemon's: worker numbers are lent to programs of its own user only"),
            );
        }
        let shared = caller.peer.as_ref().map_or(Err("it is not visible in the daemon's /proc"), |peer| {
            match (peer.shares_namespace("user"), peer.shares_namespace("net")) {
                (false, _) => Err("it is in another user namespace"),
                (_, false) => Err("it is in another network namespace"),
                (true, true) => Ok(()),
            }
        });
        shared.or_else(|why| refuse(libc::EPERM, format!("the daemon lends no worker number to this program: {why}")))
    }

    fn lent_worker(&self, number: u32, boot_id: u64, names: Vec<String>) -> LentWorker {
        let Lending { ports, selective, rto, window_bytes, .. } = &self.lending;
        let port = |(spec, device): (&PortSpec, &crate::device::HostDevice)| LentPort {
            spec: spec.to_string(),
            ifname: device.caps.ifname.clone(),
        };
        let cc = |kind: PeerKind| {
            let choice = self.cc().of(kind);
            LentCc { kind: kind.name().to_owned(), cc: choice.to_string(), rank: choice.rank.code() }
        };
        LentWorker {
            number,
            ports: ports.iter().zip(&self.devices).map(port).collect(),
            names,
            boot_id,
            selective: *selective,
            rto: RtoMode::NAMES[*rto as usize].to_owned(),
            window_bytes: *window_bytes,
            cc: PeerKind::ALL.into_iter().map(cc).collect(),
        }
    }

    /// The holder of a number has ended: answers for its queue pairs, and the number can be lent again.
    pub(crate) fn end_lease(&mut self, number: usize) {
        let Some((file, _charge)) = self.lending.lent.remove(&number) else { return };
        let stones = file.read(self.now(), number as u32, self.devices.len());
        let mut stones = stones.unwrap_or_else(|error| {
            tracing::warn!("the notes of the program with worker number {number} cannot be read: {error}");
            Vec::new()
        });
        let has = |device: DeviceId, ip| self.devices[device.index()].caps.addrs.iter().any(|addr| addr.ip == ip);
        stones.retain(|stone| has(stone.device, stone.flow.src));
        // Connections are this host's: it ends them itself.
        stones.iter_mut().for_each(|stone| stone.cm = None);
        tracing::info!(number, queue_pairs = stones.len(), "worker number returned");
        self.on_worker(0, move |w, now| {
            w.set_mail(number as u32, None);
            w.take_number_back(number);
            w.bury(now, &stones);
        });
    }

    /// Tells the holder of a number that this host is about to end: its socket for mail hangs up.
    pub(crate) fn announce_end_to(&mut self, number: usize) {
        self.on_worker(0, move |w, _| w.set_mail(number as u32, None));
    }
}

/// The two ends of the socket for mail.
fn mail_pair() -> Result<(OwnedFd, OwnedFd), Refusal> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    pair.map_err(|e| system("make a socket for mail")(e.into()))
}

/// Duplicates of a tombstone file's descriptors, with their names.
fn duplicates(file: &TombstoneFile, number: usize) -> Result<Vec<LentSocket>, Refusal> {
    let [records, psns] = tombstone_names(number as u32);
    let copy = |name: String, fd: BorrowedFd<'_>| {
        let copy = fd.try_clone_to_owned().map_err(system("duplicate a descriptor"))?;
        Ok((name, copy))
    };
    let mut copies = vec![copy(records, file.records_fd())?];
    copies.extend(file.psns_fd().map(|fd| copy(psns, fd)).transpose()?);
    Ok(copies)
}
