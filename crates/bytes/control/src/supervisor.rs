//! Notifications to the supervisor of a service, by the protocol of sd_notify(3).

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Sends notifications to the supervisor; does nothing without one.
#[derive(Debug, Default)]
pub struct SupervisorNotifier {
    to: Option<(OwnedFd, SocketAddrUnix)>,
}

impl SupervisorNotifier {
    /// A notifier for the address in `NOTIFY_SOCKET`: a path, or an abstract name after `@`. `None`: there is no supervisor.
    ///
    /// # Errors
    /// The address is not one of a Unix socket, or there is no descriptor.
    pub fn new(address: Option<OsString>) -> Result<Self, Errno> {
        let Some(address) = address else { return Ok(Self::default()) };
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
            path => SocketAddrUnix::new(path),
        }?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { to: Some((socket, address)) })
    }

    /// Sends lines such as `READY=1`. It does not wait for the supervisor, whose socket has room for hundreds of messages.
    ///
    /// # Errors
    /// The supervisor does not listen, or its socket is full.
    pub fn notify(&self, message: &str) -> Result<(), Errno> {
        let Some((socket, address)) = &self.to else { return Ok(()) };
        sendto(socket, message.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL, address).map(drop)
    }
}
