//! rsockets: sockets over RDMA. Not offered yet; every symbol is there, so that programs which link them load, and each call
//! fails with ENOSYS.

use crate::door::{self, Errno};

macro_rules! absent {
    ($($name:ident)+) => {
        $(
            /// Not offered: -1 and ENOSYS.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                door::status(|| Err(Errno(libc::ENOSYS))) as isize
            }
        )+
        /// The functions that refuse, for tests and documentation.
        pub const ABSENT: &[&str] = &[$(stringify!($name)),+];
    };
}

absent! {
    rsocket
    rbind
    rlisten
    raccept
    rconnect
    rshutdown
    rclose
    rrecv
    rrecvfrom
    rrecvmsg
    rsend
    rsendto
    rsendmsg
    rread
    rreadv
    rwrite
    rwritev
    rpoll
    rselect
    rgetpeername
    rgetsockname
    rsetsockopt
    rgetsockopt
    rfcntl
    riomap
    riounmap
    riowrite
    repoll_create
    repoll_ctl
    repoll_wait
}
