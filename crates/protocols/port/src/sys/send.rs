//! Messages for one `sendmmsg`, gathered from copied and lent bytes.
//!
//! A [`SendRing`] holds a scratch area and tables of iovecs, messages, addresses and control messages, all allocated once. Bytes
//! are appended to the message under construction either in the scratch area ([`SendRing::scratch`]) or by reference
//! ([`SendRing::lend`]). Adjacent scratch bytes share one iovec, so the trailer of one packet of a train and the head of the next
//! take one iovec together.

use super::control::ControlBuffer;
use super::socket::SockAddr;
use burst_span::Span;
use std::io;
use std::os::fd::RawFd;

/// `UIO_MAXIOV`: most iovecs of one message.
pub const IOV_MAX: usize = 1024;

/// Messages, preallocated.
pub struct SendRing {
    scratch: Box<[u8]>,
    used: usize,
    /// Offset of the first scratch byte that no iovec covers yet.
    open: usize,
    iovs: Vec<libc::iovec>,
    msgs: Vec<libc::mmsghdr>,
    names: Vec<SockAddr>,
    controls: Vec<ControlBuffer>,
    /// Index of the first iovec of the message under construction.
    first_iov: usize,
    iov_capacity: usize,
    msg_capacity: usize,
    /// Calls that have sent messages, since [`SendRing::take_calls`].
    calls: u64,
}

// SAFETY: the raw pointers in `iovs` and `msgs` point into the other fields' heap blocks, which move with the ring, or to
// lent spans, whose memory is not tied to a thread.
unsafe impl Send for SendRing {}

impl SendRing {
    /// Makes a ring for `msgs` messages of `iovs` iovecs altogether.
    pub fn new(msgs: usize, iovs: usize, scratch: usize) -> SendRing {
        SendRing {
            scratch: vec![0; scratch].into_boxed_slice(),
            used: 0,
            open: 0,
            iovs: Vec::with_capacity(iovs),
            msgs: Vec::with_capacity(msgs),
            names: Vec::with_capacity(msgs),
            controls: Vec::with_capacity(msgs),
            first_iov: 0,
            iov_capacity: iovs,
            msg_capacity: msgs,
            calls: 0,
        }
    }
    /// Removes all messages.
    pub fn clear(&mut self) {
        (self.used, self.open, self.first_iov) = (0, 0, 0);
        self.iovs.clear();
        self.msgs.clear();
        self.names.clear();
        self.controls.clear();
    }
    /// Number of complete messages.
    pub fn messages(&self) -> usize {
        self.msgs.len()
    }
    /// Whether another message can begin.
    pub fn has_message(&self) -> bool {
        self.msgs.len() < self.msg_capacity
    }
    /// Whether the message under construction has room for another packet with `spans` lent spans and `bytes` scratch bytes.
    #[inline]
    pub fn has_room(&self, spans: usize, bytes: usize) -> bool {
        // A lent span ends the scratch iovec before it, and the end of the message ends the last one.
        let more = 2 * spans + 2;
        let iovs = self.iovs.len() + more;
        iovs - self.first_iov <= IOV_MAX && iovs <= self.iov_capacity && self.used + bytes <= self.scratch.len()
    }
    /// Appends `len` bytes of the scratch area to the message under construction, for the caller to fill.
    #[inline]
    pub fn scratch(&mut self, len: usize) -> &mut [u8] {
        let at = self.used;
        self.used += len;
        &mut self.scratch[at..at + len]
    }
    /// Removes the last `len` scratch bytes, which must belong to the message under construction.
    pub fn unscratch(&mut self, len: usize) {
        assert!(self.used - self.open >= len);
        self.used -= len;
    }
    /// Appends a local span by reference: the ring keeps a copy of the span until it is cleared, and the kernel reads the bytes
    /// in [`SendRing::send`]. (The maker of a local span promises that the span is valid as long as copies of it are used.)
    #[inline]
    pub fn lend(&mut self, span: &Span) {
        assert!(span.is_local());
        self.close();
        self.iovs.push(libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() });
    }
    /// Covers the open scratch bytes by an iovec.
    #[inline]
    fn close(&mut self) {
        if self.used > self.open {
            let place = &mut self.scratch[self.open..self.used];
            self.iovs.push(libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() });
            self.open = self.used;
        }
    }
    /// Offset of the next scratch byte, for [`SendRing::patch`].
    pub fn mark(&self) -> usize {
        self.used
    }
    /// Scratch bytes that were appended before, to be overwritten.
    pub fn patch(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= self.used);
        &mut self.scratch[at..at + len]
    }
    /// Ends the message under construction, which is sent to the address to which the socket is bound.
    pub fn end_bound(&mut self) {
        let at = self.push_message();
        self.first_iov = self.iovs.len();
        debug_assert!(self.msgs[at].msg_hdr.msg_name.is_null());
    }
    /// Ends the message under construction, with its destination and options.
    pub fn end(&mut self, to: &SockAddr, segment: Option<u16>, tos: Option<u8>, hops: Option<u8>) {
        let at = self.push_message();
        self.names[at] = *to;
        let v6 = to.len() as usize == size_of::<libc::sockaddr_in6>();
        let control_len = self.controls[at].write(v6, segment, tos, hops);
        let header = &mut self.msgs[at].msg_hdr;
        header.msg_name = (&raw mut self.names[at]).cast();
        header.msg_namelen = to.len();
        if control_len > 0 {
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = control_len;
        }
        self.first_iov = self.iovs.len();
    }
    /// Adds a message of the iovecs since the last one; returns its index.
    fn push_message(&mut self) -> usize {
        self.close();
        assert!(self.msgs.len() < self.msg_capacity && self.iovs.len() <= self.iov_capacity);
        let at = self.msgs.len();
        self.names.push(SockAddr::zero());
        self.controls.push(ControlBuffer::EMPTY);
        // SAFETY: all zero is a valid mmsghdr.
        let mut msg: libc::mmsghdr = unsafe { core::mem::zeroed() };
        msg.msg_hdr.msg_iov = &raw mut self.iovs[self.first_iov];
        msg.msg_hdr.msg_iovlen = self.iovs.len() - self.first_iov;
        self.msgs.push(msg);
        at
    }
    /// Sends messages from index `first` on; returns how many were sent. An error is that of the first message.
    pub fn send(&mut self, fd: RawFd, first: usize) -> io::Result<usize> {
        let msgs = &mut self.msgs[first..];
        // SAFETY: every pointer in `msgs` leads into this ring's tables, which have not been reallocated (their capacity
        // is fixed and checked), or to lent spans, whose maker promised that they are valid while copies
        // of them are used.
        let n = unsafe { libc::sendmmsg(fd, msgs.as_mut_ptr(), msgs.len() as u32, libc::MSG_DONTWAIT) };
        let sent = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        self.calls += 1;
        Ok(sent)
    }
    /// The bytes of a complete message, as the kernel would read them now.
    #[cfg(test)]
    pub fn bytes_of(&self, message: usize) -> Vec<u8> {
        let header = &self.msgs[message].msg_hdr;
        let mut bytes = Vec::new();
        // SAFETY: the iovecs of a complete message are in `iovs`.
        for iov in unsafe { core::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) } {
            // SAFETY: iovecs are in the scratch area or are lent spans, which are valid while copies of them are used.
            bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(iov.iov_base.cast::<u8>(), iov.iov_len) });
        }
        bytes
    }
    /// Number of calls that have sent messages, since the last question.
    pub fn take_calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }
}
