//! Descriptors that programs send: closed where blocking hurts no other program.
//!
//! The control thread closes memory only if it is sealed and small. Everything else goes to a [`Disposal`].

pub use crate::disposal::Disposal;
use burst_ledger::Account;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of sealed memory that the control thread closes and unmaps itself: freeing their pages takes less than a millisecond.
const SMALL_MAX: i64 = 1 << 20;

/// Whether the descriptor is memory that cannot shrink: it can be mapped.
pub fn is_sealed_memory(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Whether the descriptor is memory of at most `SMALL_MAX` bytes that can neither shrink nor grow.
pub fn is_small_memory(fd: impl AsFd) -> bool {
    // Only files in memory have seals, so that the system knows the length without asking a program.
    let is_sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK | SealFlags::GROW));
    is_sealed && fstat(&fd).is_ok_and(|stat| stat.st_size <= SMALL_MAX)
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

    /// Whether all are small memory ([`is_small_memory`]).
    pub fn are_small(&self) -> bool {
        self.fds.iter().flatten().all(is_small_memory)
    }

    /// Closes a descriptor now if it is sealed memory. The caller has mapped it.
    pub fn close_memory(&mut self, index: usize) {
        drop(self.fds.get_mut(index).and_then(|fd| fd.take_if(|fd| is_sealed_memory(&*fd))));
    }

    /// Takes the first descriptor if it is sealed memory.
    pub fn take_memory(&mut self) -> Option<ForeignFile> {
        let is_memory = self.get(0).is_some_and(is_sealed_memory);
        if is_memory { self.take_file() } else { None }
    }

    /// Takes the first descriptor, whatever it is.
    pub fn take_file(&mut self) -> Option<ForeignFile> {
        let fd = self.fds.first_mut()?.take()?;
        Some(ForeignFile { fd: Some(fd), account: self.account.clone(), disposal: self.disposal.clone() })
    }
}

impl Drop for ForeignFds {
    fn drop(&mut self) {
        for fd in self.fds.iter_mut().filter_map(Option::take) {
            close(&self.disposal, &self.account, fd);
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
            close(&self.disposal, &self.account, fd);
        }
    }
}

/// Closes a descriptor: small memory at once, anything else by the disposal.
fn close(disposal: &Disposal, account: &Account, fd: OwnedFd) {
    if !is_small_memory(&fd) {
        disposal.close(account, fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_ledger::{AccountId, Capacities, Ledger, Policy, Resource};
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn sealed_memory_is_taken_and_other_descriptors_are_not() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let user = ledger.account(AccountId::User(1), false);
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
        assert_eq!(end.read(&mut [0]).expect("closed"), 0);
        disposal.end();
    }

    #[test]
    fn only_small_memory_that_cannot_grow_is_closed_by_the_caller() {
        let memory = |bytes, seals| {
            let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("a memfd");
            ftruncate(&fd, bytes).expect("its length");
            fcntl_add_seals(&fd, seals).expect("sealed");
            fd
        };
        let both = SealFlags::SHRINK | SealFlags::GROW;
        assert!(is_small_memory(memory(SMALL_MAX as u64, both)));
        assert!(!is_small_memory(memory(SMALL_MAX as u64 + 1, both)), "freeing its pages takes long");
        assert!(!is_small_memory(memory(4096, SealFlags::SHRINK)), "it may grow");
        assert!(!is_small_memory(std::fs::File::open("/dev/null").expect("null")));
        // A large one waits for a thread, whatever its request was.
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy::default());
        let (disposal, user) = (Disposal::start().expect("threads"), ledger.account(AccountId::User(1), false));
        let (blocks, unblock) = std::sync::mpsc::channel::<()>();
        struct Wait(std::sync::mpsc::Receiver<()>);
        impl Drop for Wait {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        disposal.release(&user, Wait(unblock));
        drop(ForeignFds::new(vec![memory(1 << 30, both)], &user, &disposal).take_memory());
        drop(ForeignFds::new(vec![memory(1 << 30, both), memory(4096, both)], &user, &disposal));
        assert_eq!(user.used(Resource::Descriptor), 2, "charged until a thread closes them");
        drop(blocks);
        disposal.wait_until_idle();
        assert_eq!(user.used(Resource::Descriptor), 0);
        disposal.end();
    }
}
