//! Classic BPF programs: instructions, and attaching them to sockets.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// One instruction.
pub type Insn = libc::sock_filter;

/// The socket option that takes a program, and so its purpose.
#[derive(Clone, Copy, Debug)]
pub enum Attach {
    /// Decides which packets a socket receives, and how much of them (`SO_ATTACH_FILTER`).
    Filter,
    /// Decides which socket of a reuse group receives a datagram (`SO_ATTACH_REUSEPORT_CBPF`).
    ReusePort,
    /// Decides which socket of a fanout group receives a frame (`PACKET_FANOUT_DATA`).
    Fanout,
}

// Numbers of asm-generic/socket.h and linux/if_packet.h that the libc crate lacks.
const SO_ATTACH_REUSEPORT_CBPF: i32 = 51;
const PACKET_FANOUT_DATA: i32 = 22;

/// An instruction that does not jump.
pub const fn op(code: u32, k: u32) -> Insn {
    Insn { code: code as u16, jt: 0, jf: 0, k }
}

/// A comparison with `k`: skips `yes` instructions if it holds, else `no`.
pub const fn branch(condition: u32, k: u32, yes: u8, no: u8) -> Insn {
    Insn { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt: yes, jf: no, k }
}

/// Attaches `code` to the socket.
pub fn attach(fd: &OwnedFd, what: Attach, code: &[Insn]) -> io::Result<()> {
    let (level, option) = match what {
        Attach::Filter => (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
        Attach::ReusePort => (libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF),
        Attach::Fanout => (libc::SOL_PACKET, PACKET_FANOUT_DATA),
    };
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which lives during the call, and does not write to it.
    let rc = unsafe {
        let value = (&raw const program).cast();
        libc::setsockopt(fd.as_raw_fd(), level, option, value, size_of_val(&program) as libc::socklen_t)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
