//! Datagrams of rtnetlink that the kernel would not write, as events and as replies to requests: nothing panics, a reply never
//! makes a usable neighbour without an address, and requests are well-formed messages.
//!
//! The module under test is included with another `sys`, whose socket delivers the fuzzer's datagrams.
#![no_main]

use burst_fuzz::Tape;
use libfuzzer_sys::fuzz_target;
use netlink::{EventSocket, NetlinkEvent, RequestSocket};
use std::net::IpAddr;

mod sys {
    //! A socket whose datagrams come from the input.
    pub mod netlink {
        use std::cell::RefCell;
        use std::collections::VecDeque;
        use std::io;
        use std::os::fd::OwnedFd;

        thread_local! {
            /// Datagrams, and `None` for the report that some were lost.
            pub static INBOX: RefCell<VecDeque<Option<Vec<u8>>>> = const { RefCell::new(VecDeque::new()) };
        }

        pub fn open(_groups: u32) -> io::Result<OwnedFd> {
            Ok(std::fs::File::open("/dev/null")?.into())
        }

        pub fn send(_fd: &OwnedFd, request: &[u8]) -> io::Result<()> {
            let len = u32::from_ne_bytes(request[..4].try_into().expect("a header"));
            assert_eq!((len as usize, len % 4), (request.len(), 0), "a request has its own length");
            let mut rest = &request[28..];
            while let [a, b, ..] = *rest {
                let len = usize::from(u16::from_ne_bytes([a, b])).next_multiple_of(4);
                assert!(len >= 4);
                rest = &rest[len..];
            }
            Ok(())
        }

        pub fn recv(_fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
            match INBOX.with_borrow_mut(VecDeque::pop_front) {
                Some(Some(datagram)) => {
                    let len = datagram.len().min(buffer.len());
                    buffer[..len].copy_from_slice(&datagram[..len]);
                    Ok(len)
                }
                Some(None) => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
                None => Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }
}

#[path = "../../crates/bytes/netif/src/netlink.rs"]
#[allow(dead_code)]
mod netlink;

fn fill(tape: &mut Tape<'_>) {
    sys::netlink::INBOX.with_borrow_mut(|inbox| {
        inbox.clear();
        for _ in 0..tape.byte() % 4 {
            let len = usize::from(tape.half() % 2048);
            inbox.push_back((len != 0).then(|| tape.take(len).to_vec()));
        }
    });
}

fn address(tape: &mut Tape<'_>) -> IpAddr {
    if tape.byte() % 2 == 0 {
        IpAddr::from([10, 0, 0, tape.byte()])
    } else {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 9])
    }
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let mut events = EventSocket::open().expect("a socket");
    let mut requests = RequestSocket::open().expect("a socket");
    while !tape.is_empty() {
        let action = tape.byte();
        let (src, dst) = (address(&mut tape), address(&mut tape));
        fill(&mut tape);
        match action % 5 {
            0 | 1 => events.events(&mut |event| {
                if let NetlinkEvent::Neighbour(entry) = event {
                    assert!(entry.mac.is_none() || entry.resolved, "{entry:?}");
                }
            }),
            2 => {
                if let Some(entry) = requests.neighbour(dst, 1) {
                    assert!(entry.mac.is_none() || entry.resolved, "{entry:?}");
                }
            }
            3 => {
                requests.route(src, dst, 3);
            }
            _ => {
                requests.is_resolving(src, dst, 3);
                requests.resolve_neighbour(dst, 3);
            }
        }
    }
});
