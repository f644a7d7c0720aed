//! Descriptors that programs send: closed where blocking hurts nobody.
//!
//! Closing a descriptor can block for as long as its owner likes: a TCP socket with SO_LINGER, a file of the program's own FUSE
//! file system. The control thread closes sealed memory only, which cannot block; everything else goes to the threads of a
//! [`Disposal`], of which each account occupies one at most. A descriptor is charged to its account until it is closed.
//!
//! A program may send descriptors faster than they are closed. While an account has [`UNCHARGED_MAX`] descriptors waiting that
//! its share has no room for, its sessions end when they send more ([`Disposal::refuses_next`]). Their sockets, with the
//! descriptors that were not received, wait in socket pairs: hundreds of sockets occupy two descriptors of the daemon.

use burst_ledger::{Account, AccountId, Charge, Resource};
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, shutdown, socketpair,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that close descriptors: as many accounts can block without delaying others' descriptors.
const THREADS: usize = 4;

/// Maximum number of waiting descriptors of an account that its share has no room for, before its sessions may send no more. One
/// message brings at most 253 (SCM_MAX_FD).
pub const UNCHARGED_MAX: usize = 1024;

/// What waits to be closed.
#[derive(Debug)]
enum Closing {
    Descriptor {
        _fd: OwnedFd,
    },
    /// A socket pair in which sockets of clients wait: the sending and the receiving end.
    Parked {
        sender: OwnedFd,
        _receiver: OwnedFd,
    },
}

/// Something that waits to be closed.
#[derive(Debug)]
struct Waiting {
    account: AccountId,
    closing: Closing,
    /// The charge, if the account's share had room for it.
    charge: Option<Charge>,
}

#[derive(Debug, Default)]
struct DisposalState {
    waiting: VecDeque<Waiting>,
    /// The accounts whose descriptors are being closed.
    busy: Vec<AccountId>,
    /// Descriptors without a charge, by account.
    uncharged: BTreeMap<AccountId, usize>,
    ended: bool,
}

#[derive(Debug, Default)]
struct DisposalShared {
    state: Mutex<DisposalState>,
    changed: Condvar,
}

impl DisposalState {
    fn push(&mut self, account: &Account, closing: Closing) {
        let charge = account.charge(&[(Resource::Descriptor, 1)]).ok();
        if charge.is_none() {
            *self.uncharged.entry(account.id().clone()).or_default() += 1;
        }
        self.waiting.push_back(Waiting { account: account.id().clone(), closing, charge });
    }

    fn closed_uncharged(&mut self, account: &AccountId) {
        if let Some(count) = self.uncharged.get_mut(account) {
            assert!(*count > 0, "a descriptor without a charge that was not counted");
            *count -= 1;
            if *count == 0 {
                self.uncharged.remove(account);
            }
        }
    }

    /// Puts a socket into a socket pair of the account that waits, or into a new one. Gives the socket back if the system has no
    /// room for it there.
    fn park(&mut self, account: &Account, socket: OwnedFd) -> Result<(), OwnedFd> {
        let last = self.waiting.iter().rev().filter(|waiting| waiting.account == *account.id());
        let parked = last.map(|waiting| &waiting.closing).find_map(|closing| match closing {
            Closing::Parked { sender, .. } => Some(sender),
            Closing::Descriptor { .. } => None,
        });
        if parked.is_some_and(|sender| send_socket(sender, &socket)) {
            return Ok(());
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok((sender, receiver)) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None) else {
            return Err(socket);
        };
        if !send_socket(&sender, &socket) {
            return Err(socket);
        }
        self.push(account, Closing::Parked { sender, _receiver: receiver });
        Ok(())
    }
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

    /// The next descriptor of an account that occupies no thread; `None` after the end of the disposal.
    fn next(&self) -> Option<Waiting> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            let free = (0..state.waiting.len()).find(|at| !state.busy.contains(&state.waiting[*at].account));
            if let Some(next) = free.and_then(|at| state.waiting.remove(at)) {
                state.busy.push(next.account.clone());
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        while let Some(next) = self.next() {
            let Waiting { account, closing, charge } = next;
            let is_charged = charge.is_some();
            drop((closing, charge));
            let mut state = self.lock();
            state.busy.retain(|busy| *busy != account);
            if !is_charged {
                state.closed_uncharged(&account);
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

/// Threads that close descriptors. They are started once and never joined: one that blocks does not delay the end of the process.
/// `None`: there are no threads, and descriptors are closed at once.
#[derive(Clone, Debug)]
pub struct Disposal(Option<Arc<DisposalShared>>);

impl Disposal {
    /// Starts the threads.
    ///
    /// # Errors
    /// A sentence when the system starts no thread.
    pub fn start() -> Result<Disposal, String> {
        let shared = Arc::new(DisposalShared::default());
        for _ in 0..THREADS {
            let of_thread = shared.clone();
            let thread = std::thread::Builder::new().name("burst-close".into());
            thread
                .spawn(move || of_thread.work())
                .map_err(|e| format!("cannot start a thread that closes descriptors: {e}"))?;
        }
        Ok(Disposal(Some(shared)))
    }

    /// A disposal without threads, for a host whose programs are its own process: it closes descriptors at once.
    pub fn in_place() -> Disposal {
        Disposal(None)
    }

    /// Closes a descriptor of an account, later. A socket loses SO_LINGER first, so that its close does not wait for the peer.
    pub fn close(&self, account: &Account, fd: OwnedFd) {
        let Some(shared) = &self.0 else { return };
        // Fails for anything but a socket, and then there is nothing to turn off.
        let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
        shared.lock().push(account, Closing::Descriptor { _fd: fd });
        shared.changed.notify_all();
    }

    /// Whether an account has [`UNCHARGED_MAX`] descriptors waiting that its share has no room for, and the next message in a
    /// client's socket carries more. The message must not be received then.
    pub fn refuses_next(&self, account: &AccountId, socket: impl AsFd) -> bool {
        let Some(shared) = &self.0 else { return false };
        let is_over = shared.lock().uncharged.get(account).is_some_and(|count| *count >= UNCHARGED_MAX);
        is_over && next_has_descriptors(socket) == Some(true)
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
            state.push(account, Closing::Descriptor { _fd: socket });
        }
        drop(state);
        shared.changed.notify_all();
    }

    /// Returns the memory of closed descriptors' places to the heap.
    pub fn shrink(&self) {
        if let Some(shared) = &self.0 {
            shared.lock().waiting.shrink_to_fit();
        }
    }

    /// Tells the threads to end. Descriptors that still wait are closed by the end of the process.
    pub fn end(&self) {
        if let Some(shared) = &self.0 {
            shared.lock().ended = true;
            shared.changed.notify_all();
        }
    }
}

/// Whether the descriptor is memory that cannot shrink: it can be mapped, and closing it cannot block.
pub fn is_sealed_memory(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Descriptors that came with a request. Those that nobody has taken are closed when this is dropped.
#[derive(Debug)]
pub struct ForeignFds {
    fds: Vec<Option<OwnedFd>>,
    account: Account,
    disposal: Disposal,
}

impl ForeignFds {
    /// Descriptors that a program of `account` has sent.
    pub fn new(fds: Vec<OwnedFd>, account: &Account, disposal: &Disposal) -> ForeignFds {
        let fds = fds.into_iter().map(Some).collect();
        ForeignFds { fds, account: account.clone(), disposal: disposal.clone() }
    }

    /// A descriptor.
    pub fn get(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.fds.get(index)?.as_ref().map(AsFd::as_fd)
    }

    /// Takes the first descriptor if it is sealed memory.
    pub fn take_memory(&mut self) -> Option<OwnedFd> {
        self.fds.first_mut()?.take_if(|fd| is_sealed_memory(&*fd))
    }

    /// Takes the first descriptor, whatever it is.
    pub fn take_file(&mut self) -> Option<ForeignFile> {
        let fd = self.fds.first_mut()?.take()?;
        Some(ForeignFile { fd: Some(fd), account: self.account.clone(), disposal: self.disposal.clone() })
    }
}

impl Drop for ForeignFds {
    fn drop(&mut self) {
        for fd in self.fds.iter_mut().filter_map(Option::take).filter(|fd| !is_sealed_memory(fd)) {
            self.disposal.close(&self.account, fd);
        }
    }
}

/// A file that a program has sent and the daemon keeps open.
#[derive(Debug)]
pub struct ForeignFile {
    /// `None` while it is dropped.
    fd: Option<OwnedFd>,
    account: Account,
    disposal: Disposal,
}

impl ForeignFile {
    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("the file is open until it is dropped").as_fd()
    }
}

impl Drop for ForeignFile {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.disposal.close(&self.account, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_ledger::{Capacities, Ledger, Policy};
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
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
        let waits = |count: usize| {
            let mut state = disposal.0.as_ref().expect("threads").lock();
            state.uncharged.insert(hostile.id().clone(), count);
        };
        copies.into_iter().for_each(|fd| disposal.close(&hostile, fd));
        assert!(!disposal.refuses_next(hostile.id(), &with), "fewer");
        waits(UNCHARGED_MAX);
        assert!(disposal.refuses_next(hostile.id(), &with) && !disposal.refuses_next(hostile.id(), &without));
        assert!(!disposal.refuses_next(honest.id(), &with), "another account");
        drop(peer);
        disposal.end();
    }

    #[test]
    fn sealed_memory_is_taken_and_other_descriptors_are_not() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let user = account(&ledger, 1);
        let memory = |seals| {
            let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("a memfd");
            fcntl_add_seals(&fd, seals).expect("sealed");
            fd
        };
        let (pair, mut end) = UnixStream::pair().expect("a pair");
        for (fd, is_memory) in
            [(memory(SealFlags::SHRINK), true), (memory(SealFlags::GROW), false), (pair.into(), false)]
        {
            let mut fds = ForeignFds::new(vec![fd], &user, &disposal);
            assert_eq!(fds.take_memory().is_some(), is_memory);
        }
        assert!(is_closed(&mut end));
        disposal.end();
    }
}
