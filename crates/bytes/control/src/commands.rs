//! One-way requests of the connection manager: commands without a reply.
//!
//! Each connection setup takes two commands, and one daemon thread reads those of all programs. Commands are therefore records of
//! fixed fields (`record.rs`), which neither end allocates memory for, and travel by a ring in shared memory
//! ([`burst_shm::record_ring`]), which needs no system call while the daemon is awake. The sender wakes a sleeping daemon by a
//! packet without content on the control socket, the *bell* ([`frame::BELL_MAGIC`](crate::frame::BELL_MAGIC)).
//!
//! The daemon takes all commands from a program's ring before it handles any packet of that program, so commands sent before
//! a request are carried out before the request. A sender that finds the ring full sends any request: when the reply comes, the
//! ring has room.

use crate::ControlError;
use crate::client::ControlLink;
use crate::cm::CmCommand;
use crate::frame::{ControlHeader, HEADER_BYTES};
use crate::record::{RecordField, RecordReader, RecordWriter};
use burst_shm::arena::Segment;
use burst_shm::record_ring::{
    CorruptRing, RECORD_BYTES_MAX, RECORD_RING_ENTRIES, RecordRingConsumer, RecordRingProducer,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Sends commands over the connection of a [`Client`](crate::Client), from any thread.
#[derive(Debug)]
pub struct CommandSender {
    link: ControlLink,
    ring: Mutex<RecordRingProducer>,
}

impl CommandSender {
    /// A sender for the control socket and the ring that the daemon has made.
    ///
    /// # Errors
    /// `Malformed` if the segment is not a record ring.
    pub fn new(socket: OwnedFd, ring: OwnedFd) -> Result<CommandSender, ControlError> {
        CommandSender::over(ControlLink::Socket(socket), ring)
    }

    pub(crate) fn over(link: ControlLink, ring: OwnedFd) -> Result<CommandSender, ControlError> {
        let malformed = |e| ControlError::Malformed(format!("a record ring: {e}"));
        let ring = Segment::map(ring).and_then(RecordRingProducer::new).map_err(malformed)?;
        Ok(CommandSender { link, ring: Mutex::new(ring) })
    }

    /// Whether the daemon still has its end of the socket open.
    pub fn is_connected(&self) -> bool {
        let socket = match &self.link {
            ControlLink::Socket(socket) => socket,
            ControlLink::InProcess(link) => return link.is_open(),
        };
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If poll fails, the next call reports the error.
        poll(&mut fds, Some(&now)).is_err() || fds[0].revents().is_empty()
    }

    /// Sends up to [`RECORD_RING_ENTRIES`] commands, to be carried out in order, with none of another thread between them. Does
    /// not wait for the daemon. Returns false, and sends nothing, if the ring has no room; after
    /// [`Client::flush_commands`](crate::Client::flush_commands) it has.
    ///
    /// # Errors
    /// Any error means that the connection is unusable. A daemon that has ended is not always noticed here.
    pub fn send(&self, ops: &[CmCommand]) -> Result<bool, ControlError> {
        debug_assert!(ops.len() <= RECORD_RING_ENTRIES as usize);
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if !ring.has_room(ops.len() as u32) {
            return Ok(false);
        }
        ops.iter().try_for_each(|op| write(&mut ring, op))?;
        if ring.post() {
            self.ring()?;
        }
        Ok(true)
    }

    fn ring(&self) -> Result<(), ControlError> {
        // A bell has no reply, so its sequence number has no meaning.
        let bell: [u8; HEADER_BYTES] = ControlHeader::new(0).to_bell();
        self.link.send_alone(&bell, None)
    }
}

fn write(ring: &mut RecordRingProducer, op: &CmCommand) -> Result<(), ControlError> {
    let mut record = [0; RECORD_BYTES_MAX];
    let mut writer = RecordWriter { record: &mut record, at: 0 };
    op.put(&mut writer);
    let len = writer.at;
    ring.write(record.get(..len).ok_or_else(|| ControlError::Malformed("an operation is too long".into()))?);
    Ok(())
}

/// The daemon's end of a program's command ring.
#[derive(Debug)]
pub struct CommandReceiver {
    ring: RecordRingConsumer,
}

impl From<RecordRingConsumer> for CommandReceiver {
    fn from(ring: RecordRingConsumer) -> CommandReceiver {
        CommandReceiver { ring }
    }
}

impl From<CorruptRing> for ControlError {
    fn from(_: CorruptRing) -> ControlError {
        ControlError::Malformed("the command ring holds impossible indices or lengths".into())
    }
}

impl CommandReceiver {
    /// A new ring: the descriptor for the program, and the daemon's end.
    ///
    /// # Errors
    /// When the system has no memory or descriptor for it.
    pub fn create() -> Result<(OwnedFd, CommandReceiver), std::io::Error> {
        let (segment, ring) = burst_shm::record_ring::create().map_err(std::io::Error::other)?;
        let fd = segment.fd().ok_or_else(|| std::io::Error::other("a record ring without descriptor"))?;
        burst_base::fault::check()?;
        Ok((fd.try_clone_to_owned()?, ring.into()))
    }

    /// Passes the commands sent so far to `carry_out`, in order. Returns their number.
    ///
    /// # Errors
    /// `Malformed` if a record is not a command; the commands before it have been passed on.
    pub fn receive(&mut self, mut carry_out: impl FnMut(CmCommand)) -> Result<u32, ControlError> {
        let pending = self.ring.pending()?;
        let mut buffer = [0; RECORD_BYTES_MAX];
        for _ in 0..pending {
            let mut reader = RecordReader { rest: self.ring.take(&mut buffer)? };
            let op = CmCommand::take(&mut reader).filter(|_| reader.rest.is_empty());
            carry_out(op.ok_or_else(|| ControlError::Malformed("not a command".into()))?);
        }
        Ok(pending)
    }

    /// Must be called before the daemon sleeps: the next command then rings the bell. False if the ring has commands.
    pub fn try_idle(&mut self) -> bool {
        self.ring.try_idle()
    }

    /// Must be called when the daemon wakes: commands then need not ring the bell.
    pub fn stay_awake(&mut self) {
        self.ring.stay_awake();
    }
}
