//! Any bytes as control messages, as records of event channels and as one-way commands, in both directions: nothing panics, and
//! what was decoded is encoded so that it is decoded the same again.
#![no_main]

use burst_control::cm::{CmCommand, CmEvent, CmEventKey};
use burst_control::commands::CommandReceiver;
use burst_control::frame::{self, ControlHeader};
use burst_control::{AsyncRecord, CommandSender, ControlError, MESSAGE_MAX, Reply, Request};
use burst_fuzz::Tape;
use burst_shm::ABI_VERSION;
use burst_shm::arena::Segment;
use burst_shm::record_ring::{RECORD_BYTES_MAX, RECORD_RING_ENTRIES, RecordRingProducer};
use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, send, socketpair};
use serde::{Serialize, de::DeserializeOwned};
use std::os::fd::OwnedFd;

/// Both ends of a control connection, and room for one packet.
struct Connection {
    ends: [OwnedFd; 2],
    buffer: Vec<u8>,
}

thread_local! {
    static CONNECTION: std::cell::RefCell<Connection> = std::cell::RefCell::new(Connection::new());
}

impl Connection {
    fn new() -> Connection {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
        Connection { ends: [a, b], buffer: vec![0; MESSAGE_MAX] }
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ControlError> {
        let mut fds = Vec::new();
        frame::receive(&self.ends[1], &mut self.buffer, RecvFlags::DONTWAIT, &mut fds)?.decode()
    }

    /// Decodes `body` as a message, and what it is encoded as.
    fn message<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(&mut self, version: u32, body: &[u8]) {
        let header = ControlHeader { version, sequence: 1 };
        frame::send_raw(&self.ends[0], header, body, &[], SendFlags::DONTWAIT).expect("sent");
        let Ok(message) = self.receive::<T>() else { return };
        assert_eq!(version, ABI_VERSION);
        frame::send(&self.ends[0], 2, &message, &[], SendFlags::DONTWAIT).expect("sent");
        assert_eq!(self.receive::<T>().expect("understood"), message);
    }

    fn raw(&mut self, packet: &[u8]) {
        if !packet.is_empty() && packet.len() <= MESSAGE_MAX {
            send(&self.ends[0], packet, SendFlags::DONTWAIT).expect("sent");
            let _ = self.receive::<Request>();
        }
    }
}

fn event(bytes: &[u8]) {
    let mut record = [0; CmEvent::BYTES];
    let len = bytes.len().min(record.len());
    record[..len].copy_from_slice(&bytes[..len]);
    let key = CmEventKey::of(&record);
    if let Some(event) = CmEvent::from_bytes(&record) {
        let key = key.expect("an event has a key");
        assert_eq!((key.kind, key.id, key.listener), (event.kind, event.id, event.listener));
        assert_eq!(CmEvent::from_bytes(&event.to_bytes()), Some(event));
    }
    if let Some(record) = bytes.first_chunk().and_then(AsyncRecord::from_bytes) {
        assert_eq!(AsyncRecord::from_bytes(&record.to_bytes()), Some(record));
    }
}

/// Records of any bytes in a ring for commands, as a program can write them.
fn commands(connection: &Connection, tape: &mut Tape<'_>) {
    let (fd, mut receiver) = CommandReceiver::create().expect("a ring");
    let segment = Segment::map(fd.try_clone().expect("a descriptor")).expect("mapped");
    let mut producer = RecordRingProducer::new(segment).expect("a ring");
    let mut written = 0;
    while !tape.is_empty() && written < RECORD_RING_ENTRIES {
        let len = usize::from(tape.half()) % (RECORD_BYTES_MAX + 1);
        producer.write(tape.take(len));
        written += 1;
    }
    assert!(!producer.post(), "the reader is awake");
    let mut commands = Vec::new();
    let received = receiver.receive(|command| commands.push(command));
    assert!(received.map_or_else(|_| commands.len() < written as usize, |n| n == written));
    again(connection, &commands);
}

/// Decoded commands, written by the library's code, arrive the same.
fn again(connection: &Connection, commands: &[CmCommand]) {
    let (fd, mut receiver) = CommandReceiver::create().expect("a ring");
    let socket = connection.ends[0].try_clone().expect("a descriptor");
    let sender = CommandSender::new(socket, fd).expect("a ring");
    assert!(sender.send(commands).expect("the reader is awake"));
    let mut arrived = Vec::new();
    assert_eq!(receiver.receive(|command| arrived.push(command)).expect("commands"), commands.len() as u32);
    assert_eq!(arrived, commands);
    let failures = arrived.iter().filter_map(CmCommand::failure_event).count();
    assert!(failures <= arrived.len());
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let kind = tape.byte();
    CONNECTION.with_borrow_mut(|connection| match kind % 8 {
        0 | 1 => connection.message::<Request>(ABI_VERSION, tape.0),
        2 | 3 => connection.message::<Reply>(ABI_VERSION, tape.0),
        4 => event(tape.0),
        5 => commands(connection, &mut tape),
        6 => connection.raw(tape.0),
        _ => {
            let version = tape.word();
            connection.message::<Request>(version, tape.0);
        }
    });
});
