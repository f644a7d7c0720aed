//! Follows changes of addresses and routes, and writes the routes of marked connections anew.
//!
//! The kernel removes a route with the address that it names as source, and a connection must get the source that it
//! would have without the proxy. One thread waits for the notifications of rtnetlink in all namespaces where connections
//! are taken. After the first it lets 200 ms pass, because changes come in groups.

use super::routes::set_routes;
use crate::config::Prefix;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(200);

/// A namespace, and the prefixes that are taken there.
#[derive(Clone, Debug)]
pub struct TakenHere {
    /// The namespace.
    pub namespace: Arc<OwnedFd>,
    /// Prefixes that had a route when the configuration was read.
    pub prefixes: Arc<Mutex<Vec<Prefix>>>,
}

/// Starts the thread. The calling thread's namespace stays as it is.
///
/// # Errors
/// One sentence.
pub fn follow(mark: u32, places: Vec<TakenHere>) -> std::result::Result<(), String> {
    let failed = |e: Error| format!("changes of routes cannot be followed: {e}");
    let run = move || {
        let opened: Result<Vec<_>> = places
            .into_iter()
            .map(|place| {
                crate::sys::enter_namespace(&place.namespace)?;
                Ok((notifications()?, place))
            })
            .collect();
        match opened {
            Ok(places) => watch(mark, &places),
            Err(e) => crate::log(failed(e)),
        }
    };
    std::thread::Builder::new().name("routes".into()).spawn(run).map(drop).map_err(failed)
}

fn watch(mark: u32, places: &[(OwnedFd, TakenHere)]) {
    loop {
        let mut watched: Vec<_> = places.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN)).collect();
        // A failure is an interruption: nothing has changed then.
        let _ = poll(&mut watched, None);
        let changed: Vec<_> = places.iter().filter(|(socket, _)| has_changed(socket, mark)).collect();
        if changed.is_empty() {
            continue;
        }
        std::thread::sleep(PAUSE);
        for (socket, place) in changed {
            has_changed(socket, mark);
            let done = crate::sys::enter_namespace(&place.namespace).map_err(|e| e.to_string());
            let prefixes = place.prefixes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match done.and_then(|()| set_routes(mark, &prefixes)) {
                Ok(without) => without.iter().for_each(|(ip, bits)| {
                    crate::log(format_args!("{ip}/{bits}: there is no route any more"));
                }),
                Err(why) => crate::log(format_args!("routes of taken connections: {why}")),
            }
        }
    }
}

/// A socket for notifications about addresses and routes of the calling thread's namespace.
fn notifications() -> Result<OwnedFd> {
    // RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE of linux/rtnetlink.h.
    const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
    let (kind, flags) = (SocketType::RAW, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
    // NETLINK_ROUTE is protocol 0.
    let socket = net::socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    Ok(socket)
}

/// Takes all notifications; whether one concerns more than the proxy's own table.
fn has_changed(socket: &OwnedFd, mark: u32) -> bool {
    let mut changed = false;
    let mut buffer = [0; 8192];
    loop {
        match crate::sys::receive(socket, &mut buffer) {
            Ok(got) => changed |= concerns_others(&buffer[..got], mark),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return changed,
            // Some were lost.
            Err(_) => return true,
        }
    }
}

/// Whether notifications speak of an address, or of a route of another table than the one with the number of the mark.
fn concerns_others(mut messages: &[u8], mark: u32) -> bool {
    while let (Some(len), Some(kind)) = (messages.get(..4), messages.get(4..6)) {
        let len = u32::from_ne_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let is_route = matches!(u16::from_ne_bytes([kind[0], kind[1]]), libc::RTM_NEWROUTE | libc::RTM_DELROUTE);
        // struct rtmsg behind the header: family, two lengths, type of service, table.
        if !is_route || messages.get(20).is_none_or(|table| u32::from(*table) != mark) {
            return true;
        }
        messages = messages.get(len.next_multiple_of(4).max(16)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::concerns_others;

    fn message(kind: u16, table: u8) -> Vec<u8> {
        let mut bytes = 28u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(28, 0);
        bytes[20] = table;
        bytes
    }

    #[test]
    fn routes_of_the_own_table_are_no_change() {
        let (own, other) = (message(libc::RTM_NEWROUTE, 81), message(libc::RTM_DELROUTE, 254));
        assert!(!concerns_others(&own, 81) && !concerns_others(&[own.clone(), own.clone()].concat(), 81));
        assert!(concerns_others(&other, 81) && concerns_others(&[own.clone(), other].concat(), 81));
        assert!(concerns_others(&message(libc::RTM_NEWADDR, 81), 81), "an address");
        assert!(!concerns_others(&[], 81));
        assert!(concerns_others(&own[..16], 81), "cut short");
    }
}
