//! rsockets, sockets over RDMA: not supported. All symbols exist, so that programs linked with them can be loaded; each call
//! fails with ENOSYS.

use crate::boundary::{self, Errno};

macro_rules! absent {
    ($($name:ident)+) => {
        $(
            /// Not supported: returns -1 with errno ENOSYS.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                boundary::status(|| Err(Errno(libc::ENOSYS))) as isize
            }
        )+
        /// The functions that are not supported, for tests and documentation.
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
