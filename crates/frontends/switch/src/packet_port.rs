//! A packet socket on an interface: every frame that arrives there is received, whoever it is for, and frames are sent as they
//! are. What the interface itself sends is not received.

use crate::frame::VNET_BYTES;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::ffi::{CString, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `ETH_P_ALL` in the byte order of the network.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
/// `PACKET_IGNORE_OUTGOING` (Linux 4.20).
const PACKET_IGNORE_OUTGOING: c_int = 23;
/// Bytes of the socket's buffers. The kernel queues what arrives while the switch does other work; the modelled buffer is the
/// switch's own.
const SOCKET_BYTES: c_int = 64 << 20;
/// Bytes of the largest frame with the kernel's header: a train.
pub const FRAME_MAX: usize = VNET_BYTES + 18 + 65_536;

/// An interface that is a port of the switch.
#[derive(Debug)]
pub struct SwitchPort {
    /// Its name.
    pub name: String,
    socket: OwnedFd,
}

impl SwitchPort {
    /// Opens an interface of the network namespace of this process.
    ///
    /// # Errors
    /// A sentence.
    pub fn open(name: &str) -> Result<SwitchPort, String> {
        let explain = |e: io::Error| match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                format!(
                    "{name}: a switch needs CAP_NET_RAW: run it as root, or in a user namespace with its own network"
                )
            }
            _ => format!("{name}: {e}"),
        };
        let index = CString::new(name).ok().map_or(0, |name| {
            // SAFETY: a string that ends with 0.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        });
        if index == 0 {
            return Err(format!("there is no interface {name} in this network namespace (ip link)"));
        }
        // With protocol 0 nothing is received before the socket is bound to its interface.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let opened = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let interface = SwitchPort { name: name.to_owned(), socket: opened.map_err(|e| explain(e.into()))? };
        interface.prepare(index).map_err(explain)?;
        Ok(interface)
    }

    fn prepare(&self, index: u32) -> io::Result<()> {
        self.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
        self.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        // Without CAP_NET_ADMIN the host's limits hold.
        for (forced, asked) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
            if self.set(libc::SOL_SOCKET, forced, &SOCKET_BYTES).is_err() {
                self.set(libc::SOL_SOCKET, asked, &SOCKET_BYTES)?;
            }
        }
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: ALL_PROTOCOLS,
            sll_ifindex: index as c_int,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: an address of its whole length.
        let rc = unsafe {
            libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        let membership = libc::packet_mreq {
            mr_ifindex: index as c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    fn set<T>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let (value, len) = ((&raw const *value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
        // SAFETY: a value of its whole length.
        let rc = unsafe { libc::setsockopt(self.socket.as_raw_fd(), level, option, value, len) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Receives a frame into `buffer` of at least [`FRAME_MAX`] bytes. Returns its bytes; `None` if none waits.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            // The interface is down; frames come again when it is up.
            Err(Errno::NETDOWN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a frame. Returns false if the kernel does not take it: the interface is down, its queue is full, or the frame is
    /// longer than its MTU.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match rustix::net::send(&self.socket, frame, SendFlags::empty()) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NETDOWN | Errno::MSGSIZE | Errno::INTR | Errno::INVAL) => {
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for SwitchPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
