//! Messages of one `recvmmsg`, in buffers allocated once; and the error queue of a socket.
//!
//! The longest train (64 KiB, and headers) fits a buffer. Small packets touch only the beginnings of buffers, so buffers are
//! spaced such that their beginnings fall into different cache sets.

use super::control::{CONTROL_MAX, ControlBuffer, ReceivedControl};
use super::socket::SockAddr;
use std::io;
use std::os::fd::RawFd;

/// Bytes of the longest datagram or train, with the headers of a frame.
pub const BUFFER: usize = 65_536 + 64;
/// Bytes from one buffer to the next: a few cache lines more than a buffer.
const STRIDE: usize = BUFFER + 5 * 64;

/// Preallocated buffers.
pub struct RecvRing {
    buffers: Vec<u8>,
    iovs: Vec<libc::iovec>,
    msgs: Vec<libc::mmsghdr>,
    names: Vec<SockAddr>,
    controls: Vec<ControlBuffer>,
    /// Number of messages that the last call has filled.
    used: usize,
    /// Calls that have received messages, since [`RecvRing::take_calls`].
    calls: u64,
}

// SAFETY: the raw pointers point into the ring's own heap blocks, which are never reallocated and move with it.
unsafe impl Send for RecvRing {}

/// A received datagram or train.
pub struct Message<'a> {
    /// Sender's address.
    pub from: &'a SockAddr,
    /// The datagrams, one after the other.
    pub bytes: &'a [u8],
    /// Facts from the control messages.
    pub facts: ReceivedControl,
    /// Whether the datagram was longer than the buffer.
    pub truncated: bool,
}

impl RecvRing {
    /// Makes a ring of `count` buffers.
    pub fn new(count: usize) -> RecvRing {
        let mut ring = RecvRing {
            buffers: vec![0; count * STRIDE],
            iovs: Vec::with_capacity(count),
            msgs: Vec::with_capacity(count),
            names: vec![SockAddr::zero(); count],
            controls: vec![ControlBuffer::EMPTY; count],
            used: 0,
            calls: 0,
        };
        for at in 0..count {
            let iov_base = ring.buffers[at * STRIDE..].as_mut_ptr().cast();
            ring.iovs.push(libc::iovec { iov_base, iov_len: BUFFER });
            // SAFETY: all zero is a valid mmsghdr.
            let mut msg: libc::mmsghdr = unsafe { core::mem::zeroed() };
            let header = &mut msg.msg_hdr;
            header.msg_name = (&raw mut ring.names[at]).cast();
            header.msg_iov = &raw mut ring.iovs[at];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut ring.controls[at]).cast();
            ring.msgs.push(msg);
        }
        ring.used = count;
        ring.renew();
        ring
    }
    /// Restores the lengths of the used messages, which the kernel has overwritten.
    fn renew(&mut self) {
        for msg in &mut self.msgs[..self.used] {
            let header = &mut msg.msg_hdr;
            header.msg_namelen = size_of::<SockAddr>() as libc::socklen_t;
            header.msg_controllen = CONTROL_MAX;
            header.msg_flags = 0;
        }
        self.used = 0;
    }
    /// Number of buffers.
    pub fn capacity(&self) -> usize {
        self.msgs.len()
    }
    /// Number of calls that have received messages, since the last question.
    pub fn take_calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }
    /// Receives up to `count` messages, which replace the last ones. Does not block.
    pub fn recv(&mut self, fd: RawFd, count: usize) -> io::Result<usize> {
        assert!(count <= self.capacity());
        self.renew();
        // SAFETY: the first `count` messages describe buffers of this ring with their true lengths.
        let n = unsafe {
            libc::recvmmsg(fd, self.msgs.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT, core::ptr::null_mut())
        };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        debug_assert!(n <= count);
        self.used = n;
        self.calls += 1;
        Ok(n)
    }
    /// Message `at` of the last [`RecvRing::recv`].
    #[inline]
    pub fn message(&self, at: usize) -> Message<'_> {
        let msg = &self.msgs[at];
        let len = (msg.msg_len as usize).min(BUFFER);
        Message {
            from: &self.names[at],
            bytes: &self.buffers[at * STRIDE..at * STRIDE + len],
            facts: self.controls[at].read(msg.msg_hdr.msg_controllen),
            truncated: msg.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

/// An error of an earlier packet (`errno` value), reported by the network (ICMP) or by this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedError {
    /// The error number.
    pub errno: i32,
    /// Whether a router or the peer has reported it, not this host.
    pub remote: bool,
}

/// Takes one entry off the socket's error queue.
pub fn take_error(fd: RawFd) -> Option<QueuedError> {
    let mut control = [0u64; 64];
    // SAFETY: all zero is a valid msghdr without buffers.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the control buffer lives during the call and has the length given.
    if unsafe { libc::recvmsg(fd, &mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) } < 0 {
        return None;
    }
    let mut found = QueuedError { errno: 0, remote: false };
    // SAFETY: the kernel filled `control` with `msg_controllen` bytes of control messages; CMSG_* walk only these, and an
    // IP_RECVERR message begins with a sock_extended_err.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while !at.is_null() {
            let kind = ((*at).cmsg_level, (*at).cmsg_type);
            let is_error =
                kind == (libc::IPPROTO_IP, libc::IP_RECVERR) || kind == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
            if is_error && (*at).cmsg_len >= libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) as usize {
                let error = core::ptr::read_unaligned(libc::CMSG_DATA(at).cast::<libc::sock_extended_err>());
                found.errno = error.ee_errno as i32;
                found.remote = error.ee_origin != libc::SO_EE_ORIGIN_LOCAL;
            }
            at = libc::CMSG_NXTHDR(&header, at);
        }
    }
    Some(found)
}
