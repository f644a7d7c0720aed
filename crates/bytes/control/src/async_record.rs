//! The record in the pipe of asynchronous events.

/// A record in the pipe of asynchronous events, 16 bytes native-endian: event type, kind of object, cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncRecord {
    /// Number of the `EventType`.
    pub event: u32,
    /// Kind of object that `cookie` names.
    pub object: AsyncObject,
    /// Cookie of the object, or port number.
    pub cookie: u64,
}

/// Kinds of objects of asynchronous events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AsyncObject {
    /// A queue pair.
    Qp = 0,
    /// A completion queue.
    Cq = 1,
    /// A shared receive queue.
    Srq = 2,
    /// The port.
    Port = 3,
    /// The device.
    Device = 4,
    /// A completion queue of URMA; the event is 0.
    Jfc = 5,
    /// A receive queue of URMA; the event is 0 for an error, 1 for the limit.
    Jfr = 6,
    /// A Jetty or JFS of URMA; the event is 0.
    Jetty = 7,
}

impl AsyncRecord {
    /// Length of a record.
    pub const BYTES: usize = 16;
    /// The record for the pipe.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..4].copy_from_slice(&self.event.to_ne_bytes());
        b[4..8].copy_from_slice(&(self.object as u32).to_ne_bytes());
        b[8..].copy_from_slice(&self.cookie.to_ne_bytes());
        b
    }
    /// Parses a record from the pipe; `None` for an unknown kind of object.
    pub fn from_bytes(b: &[u8; 16]) -> Option<AsyncRecord> {
        let word = |i: usize| u32::from_ne_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let object = match word(4) {
            0 => AsyncObject::Qp,
            1 => AsyncObject::Cq,
            2 => AsyncObject::Srq,
            3 => AsyncObject::Port,
            4 => AsyncObject::Device,
            5 => AsyncObject::Jfc,
            6 => AsyncObject::Jfr,
            7 => AsyncObject::Jetty,
            _ => return None,
        };
        Some(AsyncRecord { event: word(0), object, cookie: u64::from_ne_bytes(b[8..].try_into().ok()?) })
    }
}
