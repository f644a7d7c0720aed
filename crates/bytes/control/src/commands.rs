//! One-way requests: operations of the connection manager that have no answer.
//!
//! Two of them set up a connection, and the daemon reads them all on one thread; so they are records of fixed fields
//! (`record.rs`) that neither end takes memory for, and they go by a lane in shared memory ([`burst_shm::record_ring`]), which costs no
//! system call while the daemon is awake. A daemon that sleeps is woken by a packet without content on the control socket, the
//! *bell* ([`frame::BELL_MAGIC`](crate::frame::BELL_MAGIC)).
//!
//! Before it handles any packet of a program the daemon takes what is in the program's lane: what was wished before something
//! was asked is carried out before it. So whoever finds the lane full asks something, and has room when the answer comes.

use crate::ControlError;
use crate::cm::CmCommand;
use crate::frame::{ControlHeader, HEADER_BYTES};
use crate::record::{RecordField, RecordReader, RecordWriter};
use burst_shm::arena::Segment;
use burst_shm::record_ring::{
    CorruptRing, RECORD_BYTES_MAX, RECORD_RING_ENTRIES, RecordRingConsumer, RecordRingProducer,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Says what has no answer over a [`Client`](crate::Client)'s connection, from any thread.
#[derive(Debug)]
pub struct CommandSender {
    socket: OwnedFd,
    lane: Mutex<RecordRingProducer>,
}

impl CommandSender {
    /// Over a socket that leads to the daemon, and the lane that it made.
    ///
    /// # Errors
    /// A segment that is no lane.
    pub fn new(socket: OwnedFd, lane: OwnedFd) -> Result<CommandSender, ControlError> {
        let malformed = |e| ControlError::Malformed(format!("a lane: {e}"));
        let lane = Segment::map(lane).and_then(RecordRingProducer::new).map_err(malformed)?;
        Ok(CommandSender { socket, lane: Mutex::new(lane) })
    }

    /// Whether the daemon is still at the other end.
    pub fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // What cannot be asked is found out by the next call.
        poll(&mut fds, Some(&now)).is_err() || fds[0].revents().is_empty()
    }

    /// Says up to [`RECORD_RING_ENTRIES`] wishes, to be carried out in order; none of another thread comes between them. Never waits
    /// long. False: there is no room, nothing was said; after [`Client::flush_commands`](crate::Client::flush_commands) there will be.
    ///
    /// # Errors
    /// Any error means that the connection is unusable. That the daemon has gone need not show here.
    pub fn send(&self, ops: &[CmCommand]) -> Result<bool, ControlError> {
        debug_assert!(ops.len() <= RECORD_RING_ENTRIES as usize);
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        if !lane.has_room(ops.len() as u32) {
            return Ok(false);
        }
        ops.iter().try_for_each(|op| write(&mut lane, op))?;
        if lane.post() {
            self.ring()?;
        }
        Ok(true)
    }

    fn ring(&self) -> Result<(), ControlError> {
        // The number is repeated in replies only, so any will do.
        let bell: [u8; HEADER_BYTES] = ControlHeader::new(0).to_bell();
        loop {
            match send(&self.socket, &bell, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(ControlError::Io(e.into())),
            }
        }
    }
}

fn write(lane: &mut RecordRingProducer, op: &CmCommand) -> Result<(), ControlError> {
    let mut record = [0; RECORD_BYTES_MAX];
    let mut writer = RecordWriter { record: &mut record, at: 0 };
    op.put(&mut writer);
    let len = writer.at;
    lane.write(record.get(..len).ok_or_else(|| ControlError::Malformed("an operation is too long".into()))?);
    Ok(())
}

/// The daemon's end of a program's wishes.
#[derive(Debug)]
pub struct CommandReceiver {
    lane: RecordRingConsumer,
}

impl From<RecordRingConsumer> for CommandReceiver {
    fn from(lane: RecordRingConsumer) -> CommandReceiver {
        CommandReceiver { lane }
    }
}

impl From<CorruptRing> for ControlError {
    fn from(_: CorruptRing) -> ControlError {
        ControlError::Malformed("the lane of wishes holds what cannot be".into())
    }
}

impl CommandReceiver {
    /// A new lane: its descriptor for the program, and the daemon's end.
    ///
    /// # Errors
    /// When the system has no memory or descriptor for it.
    pub fn create() -> Result<(OwnedFd, CommandReceiver), std::io::Error> {
        let (segment, lane) = burst_shm::record_ring::create().map_err(std::io::Error::other)?;
        let fd = segment.fd().ok_or_else(|| std::io::Error::other("a lane without descriptor"))?;
        Ok((fd.try_clone_to_owned()?, lane.into()))
    }

    /// Gives what has been wished until now to `carry_out`; returns how many wishes that were.
    ///
    /// # Errors
    /// What is there is no wish. Those before it have been given.
    pub fn receive(&mut self, mut carry_out: impl FnMut(CmCommand)) -> Result<u32, ControlError> {
        let pending = self.lane.pending()?;
        let mut buffer = [0; RECORD_BYTES_MAX];
        for _ in 0..pending {
            let mut reader = RecordReader { rest: self.lane.take(&mut buffer)? };
            let op = CmCommand::take(&mut reader).filter(|_| reader.rest.is_empty());
            carry_out(op.ok_or_else(|| ControlError::Malformed("not a wish".into()))?);
        }
        Ok(pending)
    }

    /// Before the daemon sleeps: the next wish shall ring. False: there are wishes already.
    pub fn try_idle(&mut self) -> bool {
        self.lane.try_idle()
    }

    /// The daemon is awake.
    pub fn stay_awake(&mut self) {
        self.lane.stay_awake();
    }
}
