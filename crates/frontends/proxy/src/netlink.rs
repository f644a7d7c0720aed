//! Messages of nfnetlink, as far as rules and queues need them: requests with nested attributes, batches, and the kernel's
//! answers.

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const HEADER: usize = 16;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NLA_NESTED: u16 = 1 << 15;
const NLA_KIND: u16 = 0x3fff;
/// What the kernel gives a socket at least, in every default.
const SEND_BUFFER: usize = 64 << 10;

/// Attributes, one after the other, each padded to four bytes.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub fn byte(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    pub fn be16(self, kind: u16, value: u16) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn be32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn be64(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn nested(self, kind: u16, value: Attributes) -> Self {
        self.bytes(kind | NLA_NESTED, &value.0)
    }

    /// These, and then the others.
    pub fn with(mut self, others: Attributes) -> Self {
        self.0.extend(others.0);
        self
    }

    #[cfg(test)]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The value of the first attribute of a kind.
pub fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let found = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?) & NLA_KIND;
        let value = attributes.get(4..len)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

/// Messages that take effect together.
#[derive(Debug)]
pub struct RequestBatch {
    bytes: Vec<u8>,
    sequence: u32,
    subsystem: u16,
}

impl RequestBatch {
    /// What begins or ends it.
    fn limit(&self, kind: u16) -> NetfilterRequest {
        NetfilterRequest { subsystem: 0, kind, family: 0, resource: self.subsystem }
    }

    /// Appends a message.
    pub fn message(&mut self, request: NetfilterRequest, flags: i32, attributes: Attributes) {
        self.sequence += 1;
        request.append(&mut self.bytes, flags, self.sequence, attributes);
    }
}

/// What a message asks for, and of what.
#[derive(Clone, Copy, Debug)]
pub struct NetfilterRequest {
    /// The subsystem of netfilter; 0 for those that begin and end a batch.
    pub subsystem: u16,
    /// The subsystem's number of the request.
    pub kind: u16,
    /// Family of addresses.
    pub family: u8,
    /// Of a batch the subsystem, of a queue its number.
    pub resource: u16,
}

impl NetfilterRequest {
    /// Appends the message to others.
    fn append(self, to: &mut Vec<u8>, flags: i32, sequence: u32, attributes: Attributes) {
        let len = (HEADER + 4 + attributes.0.len()) as u32;
        to.extend(len.to_ne_bytes());
        to.extend((self.subsystem << 8 | self.kind).to_ne_bytes());
        to.extend(((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        to.extend(sequence.to_ne_bytes());
        to.extend(0u32.to_ne_bytes());
        // struct nfgenmsg: family, version, resource.
        to.extend([self.family, 0]);
        to.extend(self.resource.to_be_bytes());
        to.extend(attributes.0);
    }

    /// The message alone.
    fn message(self, flags: i32, sequence: u32, attributes: Attributes) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, flags, sequence, attributes);
        bytes
    }
}

/// A netlink socket of the netfilter family, in the namespace of the thread that has opened it.
#[derive(Debug)]
pub struct Netlink(OwnedFd);

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Netlink {
    /// A socket that does not wait.
    pub fn open() -> Result<Self> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        Ok(Self(net::socket_with(AddressFamily::NETLINK, kind, flags, Some(net::netlink::NETFILTER))?))
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        net::send(&self.0, bytes, SendFlags::empty())?;
        Ok(())
    }

    /// The next message or messages, at most as many bytes as there is room.
    pub fn receive<'a>(&self, to: &'a mut [u8]) -> Result<&'a [u8]> {
        let (got, _) = net::recv(&self.0, &mut *to, RecvFlags::DONTWAIT)?;
        Ok(&to[..got])
    }

    /// A message without an answer.
    pub fn request(&self, request: NetfilterRequest, attributes: Attributes) -> Result<()> {
        self.send(&request.message(0, 0, attributes))
    }

    /// A message with an answer: an error, or none.
    pub fn ask(&self, request: NetfilterRequest, attributes: Attributes) -> Result<()> {
        self.send(&request.message(libc::NLM_F_ACK, 1, attributes))?;
        self.answers()
    }

    /// A question; returns the attributes of the answer.
    pub fn get(&self, request: NetfilterRequest, attributes: Attributes) -> Result<Vec<u8>> {
        self.send(&request.message(0, 1, attributes))?;
        let mut buffer = [0; 4096];
        let answer = self.receive(&mut buffer)?;
        match error_code(answer) {
            Some(0) => Ok(answer.get(HEADER + 4..).unwrap_or_default().to_vec()),
            Some(code) => Err(Error::from_raw_os_error(-code)),
            None => Err(Error::other("an answer that is cut short")),
        }
    }

    /// An empty batch for a subsystem.
    pub fn batch(&self, subsystem: u16) -> RequestBatch {
        let mut batch = RequestBatch { bytes: Vec::new(), sequence: 0, subsystem };
        batch.message(batch.limit(BATCH_BEGIN), 0, Attributes::new());
        batch
    }

    /// Carries a batch out.
    pub fn commit(&self, mut batch: RequestBatch) -> Result<()> {
        batch.message(batch.limit(BATCH_END), libc::NLM_F_ACK, Attributes::new());
        // A batch must fit into the socket's buffer as a whole.
        let room = 2 * batch.bytes.len();
        if room > SEND_BUFFER {
            sockopt::set_socket_send_buffer_size_force(&self.0, room)?;
        }
        self.send(&batch.bytes)?;
        self.answers()
    }

    /// Reads the answers: nfnetlink writes them before `send` returns.
    fn answers(&self) -> Result<()> {
        let mut first = Ok(());
        loop {
            let mut buffer = [0; 4096];
            let mut rest = match self.receive(&mut buffer) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return first,
                Err(e) => return Err(e),
            };
            while let Some(code) = error_code(rest) {
                if code != 0 && first.is_ok() {
                    first = Err(Error::from_raw_os_error(-code));
                }
                let len = rest.get(..4).and_then(|len| len.try_into().ok()).map_or(0, u32::from_ne_bytes) as usize;
                rest = rest.get(len.next_multiple_of(4).max(HEADER)..).unwrap_or_default();
            }
        }
    }
}

/// The code of an NLMSG_ERROR: a negative errno, or 0.
fn error_code(message: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(message.get(HEADER..HEADER + 4)?.try_into().ok()?);
    Some(if i32::from(kind) == libc::NLMSG_ERROR { code } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_as_they_were_written() {
        let written = Attributes::new().text(1, "abc").be32(2, 7).nested(3, Attributes::new().byte(1, 9)).into_bytes();
        assert_eq!(attribute(&written, 1), Some(&b"abc\0"[..]));
        assert_eq!(attribute(&written, 2), Some(&7u32.to_be_bytes()[..]));
        assert_eq!(attribute(attribute(&written, 3).unwrap(), 1), Some(&[9][..]));
        assert_eq!(attribute(&written, 4), None);
        assert_eq!(attribute(&[3, 0, 1, 0], 1), None, "shorter than its own header");
        assert_eq!(attribute(&[200, 0, 1, 0, 1], 1), None, "longer than what is there");
        assert_eq!(attribute(&[0, 0, 2, 0, 0, 0, 2, 0], 1), None, "of no length: the end");
    }
}
