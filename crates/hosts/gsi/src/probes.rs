//! Static tracepoints of connection setup: SystemTap notes (USDT) of provider `burst` in the daemon's binary.
//!
//! Each step is a probe of its own, so that `bpftrace -l 'usdt:/path/to/burstd:burst:*'` and `readelf -n` list them. A
//! probe without a tracer costs one load and a branch: its arguments are computed only while its semaphore says that a tracer
//! is attached. Arguments:
//!
//! | arg | value |
//! |---|---|
//! | 0 | number of the id in its program, from 2^31 up for ids made for connect requests; 0 if the program has gone |
//! | 1 | communication id on the wire, 0 before there is one; in `qp_created` the queue pair's number |
//! | 2 | name of the step (C string) |
//! | 3 | address of the peer (C string), 0.0.0.0 while it is unknown |
//! | 4 | nanoseconds since the previous step; in `established`, since the REQ; before the REQ, the duration of the step |
//!
//! `established` has the times of the whole setup: argument 5 points to five 64-bit numbers of nanoseconds. They are the times
//! from the REQ to the REP, from the REP to the RTU, and those of resolving the address, resolving the route and creating the
//! queue pair (0 if unknown). It is a pointer because tracers on x86-64 read six arguments at most.
//!
//! `setups` has the same numbers for all connections that a worker has set up in one pass. It is for thousands of setups per
//! second: each firing costs microseconds while a tracer is attached, however much it reports. Argument 0 is the number of rows,
//! 1 to [`SETUPS_MAX`]; argument 1 points to them. A row has seven 64-bit numbers: the id, nanoseconds since the REQ, and the
//! five of `established`.

use burst_base::Nanos;
use burst_cm::{CmStep, StepTime};
use std::fmt::Write;
use std::net::IpAddr;

/// Bytes of the longest address text, an IPv4-mapped IPv6 address in full, with the terminating 0.
const TEXT_MAX: usize = 48;

/// An address as a C string on the stack.
#[derive(Debug)]
pub struct AddressText {
    bytes: [u8; TEXT_MAX],
    len: usize,
}

impl AddressText {
    /// The text of an address.
    pub fn of(peer: IpAddr) -> AddressText {
        let mut text = AddressText { bytes: [0; TEXT_MAX], len: 0 };
        match peer {
            // Without `fmt`, because it is done for each step while a tracer is attached.
            IpAddr::V4(v4) => v4.octets().into_iter().for_each(|octet| text.octet(octet)),
            // The longest address fits: see the test.
            IpAddr::V6(_) => drop(write!(text, "{peer}")),
        }
        text
    }

    /// The address of the first byte; a 0 follows the last one.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Appends a number, after a dot unless it is the first.
    fn octet(&mut self, octet: u8) {
        if self.len > 0 {
            self.digit(b'.');
        }
        for (unit, least) in [(100, 100), (10, 10), (1, 0)] {
            if octet >= least {
                self.digit(b'0' + octet / unit % 10);
            }
        }
    }

    fn digit(&mut self, digit: u8) {
        self.bytes[self.len] = digit;
        self.len += 1;
    }
}

impl Write for AddressText {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        // The last byte stays 0.
        let room = self.bytes.get_mut(self.len..TEXT_MAX - 1).ok_or(std::fmt::Error)?;
        room.get_mut(..s.len()).ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}

macro_rules! probes {
    (of programs: $($own:ident $own_name:ident),+; of steps: $($step:ident $name:ident),+;) => {
        /// A probe.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the names say it
        pub enum CmProbe { $($own,)+ $($step),+ }

        impl CmProbe {
            /// The probe of a step of the protocol. `Established` has a function of its own.
            pub(crate) const fn of(step: CmStep) -> Option<CmProbe> {
                match step {
                    CmStep::Established => None,
                    $(CmStep::$step => Some(CmProbe::$step),)+
                }
            }
        }

        /// Fires a probe, if a tracer is attached to it.
        #[inline(never)]
        pub fn fire(probe: CmProbe, id: u32, conn: u32, peer: IpAddr, elapsed: Nanos) {
            macro_rules! fire {
                ($probe:ident) => {{
                    let text;
                    probe::probe_lazy!(
                        burst, $probe, id, conn, concat!(stringify!($probe), "\0").as_ptr(),
                        { text = AddressText::of(peer); text.bytes.as_ptr() }, elapsed.0
                    );
                }};
            }
            match probe {
                $(CmProbe::$own => fire!($own_name),)+
                $(CmProbe::$step => fire!($name),)+
            }
        }
    };
}

probes! {
    of programs:
        AddrResolved addr_resolved,
        RouteResolved route_resolved,
        QpCreated qp_created;
    of steps:
        ReqSent req_sent,
        ReqReceived req_received,
        RepSent rep_sent,
        RepReceived rep_received,
        RtuSent rtu_sent,
        RtuReceived rtu_received,
        RejSent rej_sent,
        RejReceived rej_received,
        Failed failed,
        DreqSent dreq_sent,
        DreqReceived dreq_received,
        DrepReceived drep_received,
        Disconnected disconnected,
        TimewaitExit timewait_exit,
        SidrReqSent sidr_req_sent,
        SidrReqReceived sidr_req_received,
        SidrRepSent sidr_rep_sent,
        SidrRepReceived sidr_rep_received;
}

/// Fires the probe of an established connection. `prepared` is called only if a tracer is attached.
#[inline(never)]
pub(crate) fn established(id: u32, conn: u32, peer: IpAddr, took: StepTime, prepared: impl FnOnce() -> [u64; 3]) {
    let text;
    let times;
    probe::probe_lazy!(
        burst,
        established,
        id,
        conn,
        c"established".as_ptr(),
        {
            text = AddressText::of(peer);
            text.bytes.as_ptr()
        },
        took.elapsed.0,
        {
            let [address, route, qp] = prepared();
            times = [took.reply.0, took.elapsed.since(took.reply).0, address, route, qp];
            times.as_ptr()
        }
    );
}

/// Largest number of rows in one `setups`.
pub const SETUPS_MAX: usize = 32;
/// Numbers in a row of `setups`.
const ROW: usize = 7;

/// The connections that were set up in this pass, for one `setups`.
pub(crate) struct Setups {
    rows: Box<[[u64; ROW]; SETUPS_MAX]>,
    count: usize,
    /// Whether a tracer was attached when the probe was last tested.
    watched: bool,
}

impl Setups {
    pub fn new() -> Setups {
        Setups { rows: Box::new([[0; ROW]; SETUPS_MAX]), count: 0, watched: false }
    }

    /// Adds a connection of this pass. `prepared` is called only if a tracer is attached.
    pub fn note(&mut self, id: u32, took: StepTime, prepared: impl FnOnce() -> [u64; 3]) {
        if !self.watched {
            return;
        }
        debug_assert!(self.count < SETUPS_MAX, "rows that were not reported");
        let [address, route, qp] = prepared();
        let (reply, rest) = (took.reply.0, took.elapsed.since(took.reply).0);
        self.rows[self.count] = [u64::from(id), took.elapsed.0, reply, rest, address, route, qp];
        self.count += 1;
        if self.count == SETUPS_MAX {
            self.report();
        }
    }

    /// Fires `setups` at the end of a pass. Every setup takes several passes, so a new tracer is noticed before the first setup
    /// that begins after it was attached has ended.
    #[inline(never)]
    pub fn report(&mut self) {
        if self.count > 0 || !self.watched {
            self.watched = probe::probe_lazy!(burst, setups, self.count, self.rows.as_ptr());
            self.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_becomes_a_terminated_string() {
        let longest = "1111:2222:3333:4444:5555:6666:7777:8888";
        for ip in ["10.0.0.1", "0.9.100.255", "255.255.255.255", "::1", longest, "::ffff:255.255.255.255"] {
            let text = AddressText::of(ip.parse().expect("ip"));
            assert_eq!((&text.bytes[..text.len], text.bytes[text.len]), (ip.as_bytes(), 0));
        }
    }
}
