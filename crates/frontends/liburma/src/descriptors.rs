//! Descriptors that programs and the keeper wait for: made readable, and waited for.

use burst_base::Nanos;
use burst_control::inspection::InspectionSocket;
use std::os::fd::RawFd;

/// Descriptors that are watched: a port's and the bell, and the socket for tools.
const FDS_MAX: usize = 8 + InspectionSocket::<()>::FDS_MAX;

/// Makes a descriptor readable.
pub fn ring(fd: i32) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer has eight bytes. A full counter keeps the descriptor readable, so that a failure loses nothing.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Sleeps until a descriptor is readable, at most for `time`. Returns whether one may be.
pub fn sleep(fds: &[RawFd], time: Nanos) -> bool {
    await_fds(fds, time) != 0
}

/// The same; returns a bit for each descriptor that may be readable: the first is bit 0.
pub fn await_fds(fds: &[RawFd], time: Nanos) -> u32 {
    const { assert!(FDS_MAX <= 32) };
    let mut places = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; FDS_MAX];
    places.iter_mut().zip(fds).for_each(|(place, fd)| place.fd = *fd);
    let count = fds.len().min(FDS_MAX) as libc::nfds_t;
    let time = libc::timespec { tv_sec: (time.0 / 1_000_000_000) as i64, tv_nsec: (time.0 % 1_000_000_000) as i64 };
    // SAFETY: an array of its length; a descriptor that was closed ends the sleep.
    match unsafe { libc::ppoll(places.as_mut_ptr(), count, &raw const time, std::ptr::null()) } {
        0 => return 0,
        // Nobody knows: the caller looks at all.
        ..0 => return u32::MAX,
        _ => {}
    }
    places.iter().rev().fold(0, |bits, place| bits << 1 | u32::from(place.revents != 0))
}
