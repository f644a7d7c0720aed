//! Descriptors that programs send: closed where blocking hurts nobody.
//!
//! Closing a descriptor can block for as long as its owner likes: a TCP socket with SO_LINGER, a file of the program's own FUSE
//! file system. The control thread closes sealed memory only, which cannot block; everything else goes to the threads of a
//! [`Disposal`], of which each account occupies one at most. A descriptor is charged to its account until it is closed.

use burst_ledger::{Account, AccountId, Charge, Resource};
use rustix::fs::{SealFlags, fcntl_get_seals};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that close descriptors: as many accounts can block without delaying others' descriptors.
const THREADS: usize = 4;

/// A descriptor that waits to be closed.
#[derive(Debug)]
struct Waiting {
    account: AccountId,
    _fd: OwnedFd,
    /// The charge, if the account's share had room for it.
    _charge: Option<Charge>,
}

#[derive(Debug, Default)]
struct DisposalState {
    waiting: VecDeque<Waiting>,
    /// The accounts whose descriptors are being closed.
    busy: Vec<AccountId>,
    ended: bool,
}

#[derive(Debug, Default)]
struct DisposalShared {
    state: Mutex<DisposalState>,
    changed: Condvar,
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
            let account = next.account.clone();
            drop(next);
            self.lock().busy.retain(|busy| *busy != account);
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
        let charge = account.charge(&[(Resource::Descriptor, 1)]).ok();
        let waiting = Waiting { account: account.id().clone(), _fd: fd, _charge: charge };
        shared.lock().waiting.push_back(waiting);
        shared.changed.notify_one();
    }

    /// Closes a program's control socket: messages that wait in it may carry descriptors, which the kernel closes with it.
    pub fn close_socket(&self, account: &Account, socket: OwnedFd) {
        // Root and the daemon's own user do not attack the daemon.
        if !account.is_privileged() {
            self.close(account, socket);
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
