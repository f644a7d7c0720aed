//! Static tracepoints of connection setup: SystemTap notes (USDT) of provider `burst` in the daemon's binary.
//!
//! Each step is a probe of its own, so that `bpftrace -l 'usdt:/path/to/burstd:burst:*'` and `readelf -n` list them. A
//! probe that nobody watches costs one load and a branch: its arguments are made only while its semaphore says that
//! somebody is attached. Arguments:
//!
//! | arg | what |
//! |---|---|
//! | 0 | the program's number of the id, from 2^31 up for ids that came with a request; 0 when the program has gone |
//! | 1 | communication id on the wire, 0 before there is one; in `qp_created` the queue pair's number |
//! | 2 | name of the step (C string) |
//! | 3 | address of the peer (C string), 0.0.0.0 if it is not known yet |
//! | 4 | nanoseconds since the step before; in `established`, since the REQ; before the REQ, what the step took |
//!
//! `established` tells the whole story of a setup: argument 5 points to five 64-bit numbers of nanoseconds, which are from the
//! REQ to the REP, from the REP to the RTU, and what resolving the address, resolving the route and making the queue pair
//! took (0 if not known). A pointer, because tracers on x86-64 read six arguments.
//!
//! `setups` tells the same for all connections that a worker has set up in one pass, for where thousands are made in a
//! second: being watched costs microseconds each time, whatever there is to tell. Argument 0 is the number of rows, 1 to
//! [`SETUPS_MAX`]; argument 1 points to them. A row has seven 64-bit numbers: the id, nanoseconds since the REQ, and the five of
//! `established`.

use burst_base::Nanos;
use burst_cm::{CmStep, StepTime};
use std::fmt::Write;
use std::net::IpAddr;

/// The longest text of an address: an IPv4-mapped one, in full, and its end.
const TEXT_MAX: usize = 48;

/// An address as C text, on the stack.
struct Text {
    bytes: [u8; TEXT_MAX],
    len: usize,
}

impl Text {
    fn of(peer: IpAddr) -> Text {
        let mut text = Text { bytes: [0; TEXT_MAX], len: 0 };
        match peer {
            // By hand, because it is done for each step of a watched daemon.
            IpAddr::V4(v4) => v4.octets().into_iter().for_each(|octet| text.octet(octet)),
            // The longest address fits; a test holds it to that.
            IpAddr::V6(_) => drop(write!(text, "{peer}")),
        }
        text
    }

    /// A number, after a dot unless it is the first.
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

impl Write for Text {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        // The last byte stays 0.
        let room = self.bytes.get_mut(self.len..TEXT_MAX - 1).ok_or(std::fmt::Error)?;
        room.get_mut(..s.len()).ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}

macro_rules! probes {
    ($($step:ident $name:ident;)+) => {
        /// What can be watched.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the names say it
        pub enum CmProbe { $($step),+ }

        /// Fires a probe, if somebody watches it.
        #[inline(never)]
        pub fn fire(probe: CmProbe, id: u32, conn: u32, peer: IpAddr, elapsed: Nanos) {
            match probe {
                $(CmProbe::$step => {
                    let text;
                    probe::probe_lazy!(
                        burst, $name, id, conn, concat!(stringify!($name), "\0").as_ptr(),
                        { text = Text::of(peer); text.bytes.as_ptr() }, elapsed.0
                    );
                })+
            }
        }
    };
}

probes! {
    AddrResolved addr_resolved;
    RouteResolved route_resolved;
    QpCreated qp_created;
    ReqSent req_sent;
    ReqReceived req_received;
    RepSent rep_sent;
    RepReceived rep_received;
    RtuSent rtu_sent;
    RtuReceived rtu_received;
    RejSent rej_sent;
    RejReceived rej_received;
    Failed failed;
    DreqSent dreq_sent;
    DreqReceived dreq_received;
    DrepReceived drep_received;
    Disconnected disconnected;
    TimewaitExit timewait_exit;
    SidrReqSent sidr_req_sent;
    SidrReqReceived sidr_req_received;
    SidrRepSent sidr_rep_sent;
    SidrRepReceived sidr_rep_received;
}

impl CmProbe {
    /// The probe of a step of the protocol; `Established` has one of its own.
    pub(crate) const fn of(step: CmStep) -> Option<CmProbe> {
        let probe = match step {
            CmStep::ReqSent => CmProbe::ReqSent,
            CmStep::ReqReceived => CmProbe::ReqReceived,
            CmStep::RepSent => CmProbe::RepSent,
            CmStep::RepReceived => CmProbe::RepReceived,
            CmStep::RtuSent => CmProbe::RtuSent,
            CmStep::RtuReceived => CmProbe::RtuReceived,
            CmStep::Established => return None,
            CmStep::RejSent => CmProbe::RejSent,
            CmStep::RejReceived => CmProbe::RejReceived,
            CmStep::Failed => CmProbe::Failed,
            CmStep::DreqSent => CmProbe::DreqSent,
            CmStep::DreqReceived => CmProbe::DreqReceived,
            CmStep::DrepReceived => CmProbe::DrepReceived,
            CmStep::Disconnected => CmProbe::Disconnected,
            CmStep::TimewaitExit => CmProbe::TimewaitExit,
            CmStep::SidrReqSent => CmProbe::SidrReqSent,
            CmStep::SidrReqReceived => CmProbe::SidrReqReceived,
            CmStep::SidrRepSent => CmProbe::SidrRepSent,
            CmStep::SidrRepReceived => CmProbe::SidrRepReceived,
        };
        Some(probe)
    }
}

/// Fires the probe of an established connection; `prepared` is asked only if somebody watches it.
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
            text = Text::of(peer);
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

/// Most rows of one `setups`.
pub const SETUPS_MAX: usize = 32;
/// Numbers in a row of `setups`.
const ROW: usize = 7;

/// The connections set up in this pass, to be told together.
pub(crate) struct Setups {
    rows: Box<[[u64; ROW]; SETUPS_MAX]>,
    count: usize,
    /// Somebody watched when it was last looked.
    watched: bool,
}

impl Setups {
    pub fn new() -> Setups {
        Setups { rows: Box::new([[0; ROW]; SETUPS_MAX]), count: 0, watched: false }
    }

    /// A connection of this pass; `prepared` is asked only if somebody watches.
    pub fn note(&mut self, id: u32, took: StepTime, prepared: impl FnOnce() -> [u64; 3]) {
        if !self.watched {
            return;
        }
        let [address, route, qp] = prepared();
        let (reply, rest) = (took.reply.0, took.elapsed.since(took.reply).0);
        self.rows[self.count] = [u64::from(id), took.elapsed.0, reply, rest, address, route, qp];
        self.count += 1;
        if self.count == SETUPS_MAX {
            self.report();
        }
    }

    /// The end of a pass: tells what there is. Every connection takes several passes, so whoever begins to watch is seen
    /// before the first that is to be told.
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
    fn every_address_is_text_with_an_end() {
        let longest = "1111:2222:3333:4444:5555:6666:7777:8888";
        for ip in ["10.0.0.1", "0.9.100.255", "255.255.255.255", "::1", longest, "::ffff:255.255.255.255"] {
            let text = Text::of(ip.parse().expect("ip"));
            assert_eq!((&text.bytes[..text.len], text.bytes[text.len]), (ip.as_bytes(), 0));
        }
    }
}
