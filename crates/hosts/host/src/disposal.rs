//! What may take long to release: descriptors that programs have sent, mappings of their memory, and their queues.
//!
//! Closing a descriptor can block for as long as its owner likes: a TCP socket with SO_LINGER, a file of the program's own FUSE
//! file system. Whoever closes or unmaps the last reference to memory frees its pages, which takes most of a second for each
//! gigabyte. The control thread leaves both to the threads of a [`Disposal`], of which each account occupies one at most. What
//! waits is charged to its account until it is released.
//!
//! A program may send descriptors faster than they are closed. While an account has [`UNCHARGED_MAX`] descriptors waiting that
//! its share has no room for, or all accounts together have a twentieth of the daemon's descriptors, the sessions of the account
//! end when they send more ([`Disposal::refuses_next`]). The same happens when the daemon has fewer descriptors left than a
//! message brings: the kernel would close the others in the thread that receives the message. The sockets of ended sessions,
//! with the descriptors that were not received, wait in socket pairs: hundreds of sockets occupy two descriptors of the daemon.
//! One pair is made ahead, for when no descriptor is left.

use crate::descriptors::MESSAGE_DESCRIPTORS;
use burst_ledger::{Account, AccountId, Charge, Resource};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, shutdown, socketpair,
};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that release: as many accounts can block without delaying others' objects.
const THREADS: usize = 4;

/// Maximum number of waiting descriptors of an account that its share has no room for, before its sessions may send no more. One
/// message brings at most [`SCM_MAX_FD`].
pub const UNCHARGED_MAX: usize = 1024;

/// Waiting descriptors without a charge, of all accounts: one in this many of those that the daemon may open.
const UNCHARGED_PART: u64 = 20;

/// Descriptors of one message (`SCM_MAX_FD` of the kernel).
const SCM_MAX_FD: usize = MESSAGE_DESCRIPTORS as usize;

/// In debug builds the queues of so many accounts are checked whenever something has been released.
const ACCOUNTS_CHECKED: usize = 16;

/// Socket pairs that are looked at for room for another socket.
const PARKED_SEEN: usize = 4;

/// An object that does its work when it is dropped.
struct Dropped(Box<dyn Send>);

impl fmt::Debug for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
}

/// What waits to be released.
#[derive(Debug)]
enum Closing {
    Descriptor(OwnedFd),
    /// A socket pair in which sockets of clients wait: the sending and the receiving end.
    Parked(OwnedFd, OwnedFd),
    /// Something with charges of its own.
    Object(Dropped),
}

impl Closing {
    fn release(self) {
        match self {
            Closing::Descriptor(fd) => drop(fd),
            Closing::Parked(sender, receiver) => drop((sender, receiver)),
            Closing::Object(Dropped(object)) => drop(object),
        }
    }
}

/// Something that waits to be released.
#[derive(Debug)]
struct Waiting {
    closing: Closing,
    /// The charge, if the account's share had room for it.
    charge: Option<Charge>,
    /// Whether it is a descriptor without a charge.
    is_uncharged: bool,
}

/// What waits for one account.
#[derive(Debug, Default)]
struct DisposalQueue {
    waiting: VecDeque<Waiting>,
    /// Whether a thread is releasing something of the account.
    is_busy: bool,
    /// Descriptors without a charge.
    uncharged: usize,
}

#[derive(Debug, Default)]
struct DisposalState {
    /// The accounts of which something waits or is being released.
    accounts: BTreeMap<AccountId, DisposalQueue>,
    /// Accounts, in turn, of which something waits and that occupy no thread.
    ready: VecDeque<AccountId>,
    /// Descriptors without a charge, of all accounts.
    uncharged: usize,
    /// A socket pair for when no descriptor is left.
    spare: Option<(OwnedFd, OwnedFd)>,
    ended: bool,
}

#[derive(Debug, Default)]
struct DisposalShared {
    state: Mutex<DisposalState>,
    /// Signalled when an account becomes ready, or the disposal ends.
    ready: Condvar,
    /// Signalled when nothing is left.
    idle: Condvar,
    /// Limit of all accounts' descriptors without a charge.
    uncharged_max: usize,
}

impl DisposalState {
    /// Checks the queues: called where they are few, in debug builds.
    fn check(&self) {
        let sum: usize = self.accounts.values().map(|queue| queue.uncharged).sum();
        assert_eq!(sum, self.uncharged, "descriptors without a charge, of all accounts");
        for queue in self.accounts.values() {
            let waiting = queue.waiting.iter().filter(|waiting| waiting.is_uncharged).count();
            assert!(waiting <= queue.uncharged, "a descriptor without a charge that is not counted");
            assert!(queue.uncharged <= waiting + usize::from(queue.is_busy), "a descriptor is counted that is closed");
            assert!(queue.is_busy || !queue.waiting.is_empty(), "an account of which nothing waits");
        }
        let is_ready = |queue: &DisposalQueue| !queue.is_busy && !queue.waiting.is_empty();
        let ready = self.accounts.values().filter(|queue| is_ready(queue)).count();
        assert_eq!(self.ready.len(), ready, "each account is in the line once");
        assert!(self.ready.iter().all(|account| self.accounts.get(account).is_some_and(is_ready)));
    }

    fn push(&mut self, account: &Account, closing: Closing) {
        let is_object = matches!(closing, Closing::Object(_));
        let charge = if is_object { None } else { account.charge(&[(Resource::Descriptor, 1)]).ok() };
        let is_uncharged = !is_object && charge.is_none();
        let queue = self.accounts.entry(account.id().clone()).or_default();
        queue.uncharged += usize::from(is_uncharged);
        self.uncharged += usize::from(is_uncharged);
        queue.waiting.push_back(Waiting { closing, charge, is_uncharged });
        if !queue.is_busy && queue.waiting.len() == 1 {
            self.ready.push_back(account.id().clone());
        }
    }

    /// Takes the next object of an account that occupies no thread.
    fn pop(&mut self) -> Option<(AccountId, Waiting)> {
        let account = self.ready.pop_front()?;
        let queue = self.accounts.get_mut(&account).expect("a ready account has a queue");
        let next = queue.waiting.pop_front().expect("something of a ready account waits");
        assert!(!std::mem::replace(&mut queue.is_busy, true), "an account occupies one thread");
        Some((account, next))
    }

    /// An object of an account has been released.
    fn released(&mut self, account: AccountId, was_uncharged: bool) {
        let queue = self.accounts.get_mut(&account).expect("a busy account has a queue");
        debug_assert!(queue.is_busy, "an account whose thread has released something is busy");
        queue.is_busy = false;
        queue.uncharged -= usize::from(was_uncharged);
        self.uncharged -= usize::from(was_uncharged);
        if !queue.waiting.is_empty() {
            self.ready.push_back(account);
        } else {
            assert_eq!(queue.uncharged, 0, "a descriptor without a charge that was not counted");
            self.accounts.remove(&account);
        }
        if cfg!(debug_assertions) && self.accounts.len() <= ACCOUNTS_CHECKED {
            self.check();
        }
    }

    /// Makes the spare pair if it is missing.
    fn refill(&mut self) {
        if self.spare.is_none() {
            self.spare = pair();
        }
    }

    /// Puts a socket into a socket pair of the account that waits, or into a new one. Gives the socket back if the system has no
    /// room for it there.
    fn park(&mut self, account: &Account, socket: OwnedFd) -> Result<(), OwnedFd> {
        let waiting = self.accounts.get(account.id()).into_iter().flat_map(|queue| queue.waiting.iter().rev());
        let mut parked = waiting.take(PARKED_SEEN).filter_map(|waiting| match &waiting.closing {
            Closing::Parked(sender, _) => Some(sender),
            _ => None,
        });
        if parked.next().is_some_and(|sender| send_socket(sender, &socket)) {
            return Ok(());
        }
        let Some((sender, receiver)) = pair().or_else(|| self.spare.take()) else { return Err(socket) };
        if !send_socket(&sender, &socket) {
            return Err(socket);
        }
        drop(socket);
        self.push(account, Closing::Parked(sender, receiver));
        self.refill();
        Ok(())
    }
}

/// A pair of sockets; `None`: the system gives none.
fn pair() -> Option<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()
}

/// Sends a copy of a descriptor. False if there is no room for it.
fn send_socket(sender: &OwnedFd, socket: &OwnedFd) -> bool {
    let rights = [socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&rights))
        && sendmsg(sender, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
}

/// Whether the next message that waits in a socket carries descriptors; `None` without a message. The message stays, and no
/// descriptor is received.
fn next_has_descriptors(socket: impl AsFd) -> Option<bool> {
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut RecvAncillaryBuffer::default(), flags).ok()?;
    let has = got.flags.contains(ReturnFlags::CTRUNC);
    (got.bytes > 0 || has).then_some(has)
}

/// Whether the daemon has room for all descriptors of the next message in a socket. They are received and closed again. Closing
/// them cannot block: the message holds them.
fn next_fits(socket: impl AsFd) -> bool {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags);
    got.is_ok_and(|got| !got.flags.contains(ReturnFlags::CTRUNC))
}

/// Whether messages that wait in a client's socket carry descriptors. Nothing can be sent to it any more.
fn holds_descriptors(socket: &OwnedFd) -> bool {
    /// More messages than a socket's buffer holds.
    const MESSAGES_MAX: usize = 4096;
    if shutdown(socket, Shutdown::Both).is_err() {
        return true;
    }
    for _ in 0..MESSAGES_MAX {
        match next_has_descriptors(socket) {
            None => return false,
            Some(true) => return true,
            // Taking a message without descriptors closes nothing. Without it there is no progress, and the loop ends.
            Some(false) => _ = recv(socket, &mut [0; 1], RecvFlags::DONTWAIT),
        }
    }
    true
}

impl DisposalShared {
    fn lock(&self) -> MutexGuard<'_, DisposalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, account: &Account, closing: Closing) {
        self.lock().push(account, closing);
        self.ready.notify_one();
    }

    /// The next object of an account that occupies no thread; `None` after the end of the disposal.
    fn next(&self) -> Option<(AccountId, Waiting)> {
        let mut state = self.lock();
        while !state.ended {
            if let Some(next) = state.pop() {
                return Some(next);
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn work(&self) {
        while let Some((account, Waiting { closing, charge, is_uncharged })) = self.next() {
            closing.release();
            drop(charge);
            let mut state = self.lock();
            state.released(account, is_uncharged);
            state.refill();
            if state.accounts.is_empty() {
                self.idle.notify_all();
            }
        }
    }
}

/// Threads that release what may take long. They are started once and never joined: one that blocks does not delay the end of
/// the process. `None`: there are no threads, and everything is released at once.
#[derive(Clone, Debug)]
pub struct Disposal(Option<Arc<DisposalShared>>);

impl Disposal {
    /// Starts the threads.
    ///
    /// # Errors
    /// A sentence when the system starts no thread.
    pub fn start() -> Result<Disposal, String> {
        let uncharged_max = crate::descriptors::limit() / UNCHARGED_PART;
        let uncharged_max = usize::try_from(uncharged_max).unwrap_or(usize::MAX);
        let shared = Arc::new(DisposalShared { uncharged_max, ..DisposalShared::default() });
        shared.lock().refill();
        for _ in 0..THREADS {
            let of_thread = shared.clone();
            let thread = std::thread::Builder::new().name("burst-close".into());
            thread
                .spawn(move || of_thread.work())
                .map_err(|e| format!("cannot start a thread that closes descriptors: {e}"))?;
        }
        Ok(Disposal(Some(shared)))
    }

    /// A disposal without threads, for a host whose programs are its own process: it releases everything at once.
    pub fn in_place() -> Disposal {
        Disposal(None)
    }

    /// Closes a descriptor of an account, later. A socket loses SO_LINGER first, so that its close does not wait for the peer.
    pub fn close(&self, account: &Account, fd: OwnedFd) {
        let Some(shared) = &self.0 else { return };
        // Fails for anything but a socket, and then there is nothing to turn off.
        let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
        shared.push(account, Closing::Descriptor(fd));
    }

    /// Drops an object of an account, later. It holds its charges itself: they end when it has been dropped.
    pub fn release(&self, account: &Account, object: impl Send + 'static) {
        let Some(shared) = &self.0 else { return };
        shared.push(account, Closing::Object(Dropped(Box::new(object))));
    }

    /// Whether the next message in the socket of an account's client must not be received, because it carries descriptors and too
    /// many of the account's wait to be closed. `is_scarce`: the daemon may have fewer left than a message brings.
    pub fn refuses_next(&self, account: &AccountId, socket: impl AsFd, is_scarce: bool) -> bool {
        let Some(shared) = &self.0 else { return false };
        let is_over = {
            let state = shared.lock();
            let own = state.accounts.get(account).map_or(0, |queue| queue.uncharged);
            own >= UNCHARGED_MAX || own > 0 && state.uncharged >= shared.uncharged_max
        };
        let has_descriptors = (is_over || is_scarce) && next_has_descriptors(&socket) == Some(true);
        has_descriptors && (is_over || !next_fits(&socket))
    }

    /// Descriptors that wait to be closed and are charged to no account.
    pub fn uncharged(&self) -> u64 {
        self.0.as_ref().map_or(0, |shared| shared.lock().uncharged as u64)
    }

    /// Closes a program's control socket: messages that wait in it may carry descriptors, which the kernel closes with it.
    pub fn close_socket(&self, account: &Account, socket: OwnedFd) {
        let Some(shared) = &self.0 else { return };
        // Root and the daemon's own user do not attack the daemon.
        if account.is_privileged() || !holds_descriptors(&socket) {
            return;
        }
        let mut state = shared.lock();
        if let Err(socket) = state.park(account, socket) {
            state.push(account, Closing::Descriptor(socket));
        }
        drop(state);
        shared.ready.notify_one();
    }

    /// Returns the memory of released objects' places to the heap.
    pub fn shrink(&self) {
        if let Some(shared) = &self.0 {
            let mut state = shared.lock();
            state.ready.shrink_to_fit();
            state.accounts.values_mut().for_each(|queue| queue.waiting.shrink_to_fit());
        }
    }

    /// Waits until everything has been released.
    pub fn wait_until_idle(&self) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.lock();
        while !state.accounts.is_empty() && !state.ended {
            state = shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells the threads to end. What still waits is released by the end of the process.
    pub fn end(&self) {
        if let Some(shared) = &self.0 {
            shared.lock().ended = true;
            shared.ready.notify_all();
            shared.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::ForeignFds;
    use burst_ledger::{Capacities, Ledger, Policy};
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    fn account(ledger: &Ledger, uid: u32) -> Account {
        ledger.account(AccountId::User(uid), false)
    }

    /// A socket whose close blocks: unsent bytes, and a peer that does not read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (peer, _) = listener.accept().expect("accepted");
        rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60))).expect("SO_LINGER");
        ours.set_nonblocking(true).expect("non-blocking");
        let block = [0; 1 << 16];
        while std::io::Write::write(&mut &ours, &block).is_ok() {}
        ours.set_nonblocking(false).expect("blocking");
        (ours.into(), peer)
    }

    /// A Unix socket whose close blocks: a lingering socket waits in it, out of reach.
    fn wrapped() -> (OwnedFd, TcpStream) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let (inner, peer) = lingering();
        let (carrier, sender) = UnixStream::pair().expect("a pair");
        let rights = [inner.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&rights)));
        sendmsg(&sender, &[std::io::IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).expect("sent");
        (carrier.into(), peer)
    }

    fn is_closed(end: &mut UnixStream) -> bool {
        end.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        end.read(&mut [0]).is_ok_and(|n| n == 0)
    }

    #[test]
    fn a_descriptor_whose_close_blocks_delays_neither_the_caller_nor_other_accounts() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let (hostile, honest) = (account(&ledger, 1), account(&ledger, 2));
        let begun = Instant::now();
        let mut peers = Vec::new();
        // More than there are threads.
        for _ in 0..2 * THREADS {
            let (fd, peer) = wrapped();
            peers.push(peer);
            drop(ForeignFds::new(vec![fd], &hostile, &disposal));
        }
        let (ours, mut end) = UnixStream::pair().expect("a pair");
        drop(ForeignFds::new(vec![ours.into()], &honest, &disposal));
        assert!(is_closed(&mut end), "the honest account's descriptor waits");
        assert!(begun.elapsed() < Duration::from_secs(60), "a close has blocked");
        assert_eq!(hostile.used(Resource::Descriptor), 2 * THREADS as u64, "charged until closed");
        drop(peers);
        disposal.end();
    }

    #[test]
    fn a_lingering_socket_does_not_wait_for_its_peer() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let user = account(&ledger, 1);
        let (sockets, _peers): (Vec<_>, Vec<_>) = (0..2 * THREADS).map(|_| lingering()).unzip();
        let (last, mut end) = UnixStream::pair().expect("a pair");
        drop(ForeignFds::new(sockets.into_iter().chain([last.into()]).collect(), &user, &disposal));
        assert!(is_closed(&mut end), "the descriptor behind the sockets waits");
        disposal.end();
    }

    /// A client's socket in which a message with a descriptor waits, if `carried` gives one.
    fn client_that_sent(carried: Option<&OwnedFd>) -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        match carried {
            Some(fd) => assert!(send_socket(&theirs, fd)),
            None => assert_eq!(rustix::net::send(&theirs, b"x", SendFlags::empty()), Ok(1)),
        }
        (ours, theirs)
    }

    /// The inode of an open file.
    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).expect("an open file").st_ino
    }

    #[test]
    fn sockets_with_descriptors_behind_one_that_blocks_occupy_few_descriptors() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let hostile = account(&ledger, 1);
        let (blocks, peer) = wrapped();
        disposal.close(&hostile, blocks);
        let carried: OwnedFd = std::fs::File::open("/dev/null").expect("null").into();
        let mut inodes = Vec::new();
        for _ in 0..400 {
            let (ours, theirs) = client_that_sent(Some(&carried));
            drop(theirs);
            inodes.push(inode(&ours));
            disposal.close_socket(&hostile, ours);
        }
        // Other tests of this process have descriptors, too: these sockets are counted, by the names of their inodes.
        let names: Vec<_> = inodes.iter().map(|inode| std::path::PathBuf::from(format!("socket:[{inode}]"))).collect();
        let open = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
        let waiting = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|name| names.contains(&name))).count();
        assert!(waiting < 50, "{waiting} of {} sockets are open", names.len());
        assert!(hostile.used(Resource::Descriptor) < 50);
        // Sockets without descriptors are closed at once.
        let (ours, theirs) = client_that_sent(None);
        disposal.close_socket(&hostile, ours);
        assert_eq!(recv(&theirs, &mut [0; 1], RecvFlags::empty()).map(|(count, _)| count).unwrap_or(0), 0);
        drop(peer);
        disposal.end();
    }

    #[test]
    fn an_account_with_too_many_descriptors_waiting_may_send_no_more() {
        let ledger = Ledger::new(Capacities::new(|_| 4), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let (hostile, honest) = (account(&ledger, 1), account(&ledger, 2));
        let (blocks, peer) = wrapped();
        disposal.close(&hostile, blocks);
        let null: OwnedFd = std::fs::File::open("/dev/null").expect("null").into();
        let (with, _others) = client_that_sent(Some(&null));
        let (without, _more) = client_that_sent(None);
        let copies: Vec<OwnedFd> = (0..UNCHARGED_MAX / 4).map(|_| null.try_clone().expect("a copy")).collect();
        let shared = disposal.0.as_ref().expect("threads");
        let waits = |count: usize, of_all: usize| {
            let mut state = shared.lock();
            let before = std::mem::replace(&mut state.uncharged, of_all);
            let queue = state.accounts.get_mut(hostile.id()).expect("descriptors that wait");
            (std::mem::replace(&mut queue.uncharged, count), before)
        };
        copies.into_iter().for_each(|fd| disposal.close(&hostile, fd));
        let refuses = |account: &Account, socket: &OwnedFd| disposal.refuses_next(account.id(), socket, false);
        assert!(!refuses(&hostile, &with), "fewer");
        let before = waits(UNCHARGED_MAX, UNCHARGED_MAX);
        assert!(refuses(&hostile, &with) && !refuses(&hostile, &without));
        assert!(!refuses(&honest, &with), "another account");
        // All accounts together have as many as may wait.
        waits(1, shared.uncharged_max);
        assert!(refuses(&hostile, &with) && !refuses(&honest, &with), "who has none waiting may send");
        waits(before.0, before.1);
        drop(peer);
        disposal.end();
    }

    #[test]
    fn an_object_is_dropped_by_another_thread_in_the_turn_of_its_account() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let (hostile, honest) = (account(&ledger, 1), account(&ledger, 2));
        struct Slow {
            receiver: std::sync::mpsc::Receiver<()>,
            _charge: Charge,
        }
        impl Drop for Slow {
            fn drop(&mut self) {
                let _ = self.receiver.recv();
            }
        }
        // Many objects whose end takes long: the caller goes on, and another account's is dropped.
        let mut senders = Vec::new();
        for _ in 0..2 * THREADS {
            let (sender, receiver) = std::sync::mpsc::channel();
            let charge = hostile.charge(&[(Resource::Mapping, 1)]).expect("room");
            disposal.release(&hostile, Slow { receiver, _charge: charge });
            senders.push(sender);
        }
        let (ours, mut end) = UnixStream::pair().expect("a pair");
        disposal.release(&honest, ours);
        assert!(is_closed(&mut end), "the honest account's object waits");
        assert_eq!(hostile.used(Resource::Mapping), 2 * THREADS as u64, "charged until dropped");
        drop(senders);
        disposal.wait_until_idle();
        assert_eq!(hostile.used(Resource::Mapping), 0);
        disposal.end();
    }

    #[test]
    #[ignore = "limits the descriptors of its process: the test below runs it in one of its own"]
    fn in_a_process_without_descriptors() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let hostile = account(&ledger, 1);
        let (lingers, peer) = wrapped();
        disposal.close(&hostile, lingers);
        let (carried, second) = wrapped();
        let (with, _other) = client_that_sent(Some(&carried));
        let (refused, _more) = client_that_sent(Some(&carried));
        drop(carried);
        assert!(!disposal.refuses_next(hostile.id(), &with, true), "there is room");
        let mut all = Vec::new();
        while let Ok(null) = std::fs::File::open("/dev/null") {
            all.push(null);
        }
        // Received in this thread, the kernel would close it here: there is no number for it.
        assert!(disposal.refuses_next(hostile.id(), &with, true));
        // Sockets that hold it go to the pair that was made ahead; this thread closes nothing.
        let begun = Instant::now();
        disposal.close_socket(&hostile, refused);
        disposal.close_socket(&hostile, with);
        assert!(begun.elapsed() < Duration::from_secs(60), "a close has blocked");
        drop((all, peer, second));
        disposal.wait_until_idle();
        assert_eq!(hostile.used(Resource::Descriptor), 0);
        disposal.end();
    }

    #[test]
    fn without_descriptors_nothing_is_closed_by_the_caller() {
        let name = "disposal::tests::in_a_process_without_descriptors";
        let test = std::env::current_exe().expect("this program").display().to_string();
        let run = format!("ulimit -n 64; exec '{test}' --exact {name} --ignored --nocapture --test-threads=1");
        let run = std::process::Command::new("sh").args(["-c", &run]).output().expect("a process");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
    }
}
