//! Which of a port's sockets have packets.
//!
//! One socket, that on which packets came last, is *busy*. It is read in each burst without a question to the kernel and is in
//! no epoll set: the kernel then has nobody to tell of its packets, which costs the sender's softirq a lock and a list for
//! each, and a burst one system call instead of two. All others are in one epoll set. It is asked
//!
//! * in every [`LOOK_EVERY`]th burst, also while no socket is busy: a quiet port costs a worker's other ports little;
//! * when [`LOOK_AFTER`] have passed: timers run after what has arrived;
//! * in each burst while it has found packets lately, and after a sleep.
//!
//! A socket becomes the busy one when [`STREAK_MIN`] looks in a row have found packets on it, if the present one has had none in
//! [`QUIET_MAX`] bursts.
//!
//! While a thread sleeps all sockets are in the set. A thread that slept on the socket itself would often be woken on the
//! processor of the sender, because the kernel expects who fills a socket to sleep next; who sleeps on an epoll set is not.
//! In a program with an engine one thread may sleep while another runs the worker: no socket leaves the set then.

use burst_base::Nanos;
use rustix::event::epoll;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// Most sockets served by one call; the kernel begins with another one next time.
pub const READY_MAX: usize = 16;
/// Bursts between two looks at the sockets that are not busy.
const LOOK_EVERY: u32 = 8;
/// Longest time between two looks of who looks at all.
const LOOK_AFTER: Nanos = Nanos::from_us(30);
/// Looks without packets after which it is looked in every [`LOOK_EVERY`]th burst only.
const FOUND_LATELY: u32 = 64;
/// Bursts without packets after which the busy socket makes way.
const QUIET_MAX: u32 = 64;
/// Looks in a row that find packets on a socket before it becomes the busy one: it is not worth two calls for each sleep.
const STREAK_MIN: u32 = 2;
const NO_WAIT: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };

/// The epoll set, and the busy socket.
pub struct SocketWatch {
    epoll: OwnedFd,
    busy: Option<RawFd>,
    /// Whether a thread sleeps, or is about to.
    asleep: bool,
    /// The socket that was found first by the last looks, and how many of them.
    streak: (RawFd, u32),
    /// Bursts since the last look, and its time.
    bursts: u32,
    looked_at: Nanos,
    /// Looks since one found packets.
    looks_in_vain: u32,
    /// Bursts since the busy socket had packets.
    quiet: u32,
}

impl SocketWatch {
    /// Without sockets.
    pub fn new() -> rustix::io::Result<SocketWatch> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(SocketWatch {
            epoll,
            busy: None,
            asleep: false,
            streak: (-1, 0),
            bursts: 0,
            looked_at: Nanos(0),
            looks_in_vain: 0,
            quiet: 0,
        })
    }

    /// Watches one more socket. A socket that is closed leaves the set by itself.
    pub fn add(&mut self, sock: &OwnedFd) -> rustix::io::Result<()> {
        // The number may be that of a socket that was closed.
        if self.busy == Some(sock.as_raw_fd()) {
            self.busy = None;
        }
        epoll::add(&self.epoll, sock, token(sock), epoll::EventFlags::IN)
    }

    /// The busy socket.
    #[inline]
    pub fn busy(&self) -> Option<RawFd> {
        self.busy
    }

    /// The busy socket was read, and had packets or none.
    #[inline]
    pub fn found(&mut self, any: bool) {
        self.quiet = if any { 0 } else { self.quiet.saturating_add(1) };
    }

    /// Whether it is time to look at the other sockets. Who sleeps, or is about to, wants to know.
    #[inline]
    pub fn is_due(&mut self, now: Nanos) -> bool {
        self.bursts += 1;
        let is_late = now.since(self.looked_at) >= LOOK_AFTER;
        self.asleep || is_late || self.bursts >= LOOK_EVERY || self.looks_in_vain < FOUND_LATELY
    }

    /// The other sockets that have packets.
    pub fn ready(&mut self, now: Nanos) -> ([RawFd; READY_MAX], usize) {
        (self.bursts, self.looked_at) = (0, now);
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; READY_MAX];
        let found = epoll::wait(&self.epoll, &mut events[..], Some(&NO_WAIT)).unwrap_or(0);
        let mut ready = [-1; READY_MAX];
        ready.iter_mut().zip(&events[..found]).for_each(|(fd, event)| *fd = event.data.u64() as RawFd);
        (ready, found)
    }

    /// Whether the look has found packets.
    pub fn looked(&mut self, any: bool) {
        self.looks_in_vain = if any { 0 } else { self.looks_in_vain.saturating_add(1) };
    }

    /// The last look has found packets on `sock`, one of `socks`, first: it may become the busy one.
    pub fn offer<'a>(&mut self, sock: &OwnedFd, mut socks: impl Iterator<Item = &'a OwnedFd>) {
        let fd = sock.as_raw_fd();
        self.streak = (fd, if self.streak.0 == fd { self.streak.1.saturating_add(1) } else { 1 });
        let former = self.busy.and_then(|busy| socks.find(|s| s.as_raw_fd() == busy));
        if self.asleep || self.streak.1 < STREAK_MIN || (former.is_some() && self.quiet < QUIET_MAX) {
            return;
        }
        if former.is_some_and(|former| self.put_back(former).is_err()) || epoll::delete(&self.epoll, sock).is_err() {
            return;
        }
        (self.busy, self.quiet, self.streak) = (Some(fd), 0, (-1, 0));
    }

    /// A thread will sleep on the set: all of `socks` are in it from now on. An error: it must not.
    pub fn before_sleep<'a>(&mut self, mut socks: impl Iterator<Item = &'a OwnedFd>) -> rustix::io::Result<()> {
        self.asleep = true;
        self.streak = (-1, 0);
        match self.busy.and_then(|busy| socks.find(|s| s.as_raw_fd() == busy)) {
            Some(busy) => self.put_back(busy),
            None => Ok(()),
        }
    }

    /// No thread sleeps any more.
    pub fn after_sleep(&mut self) {
        self.asleep = false;
        // It may have been woken by packets.
        self.looks_in_vain = 0;
    }

    /// Puts the busy socket into the set again; there is none then.
    fn put_back(&mut self, busy: &OwnedFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, busy, token(busy), epoll::EventFlags::IN)?;
        self.busy = None;
        Ok(())
    }

    /// The epoll set, by which a thread that sleeps learns of packets.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

fn token(fd: &impl AsFd) -> epoll::EventData {
    epoll::EventData::new_u64(fd.as_fd().as_raw_fd() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::is_readable;
    use std::net::UdpSocket;

    fn socket() -> (UdpSocket, OwnedFd) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        let fd = socket.try_clone().expect("a descriptor is free").into();
        (socket, fd)
    }

    fn send_to(socket: &UdpSocket) {
        let peer = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        peer.send_to(&[7], socket.local_addr().expect("it is bound")).expect("loopback sends");
    }

    /// Looks find `fd` so often that it may become the busy one.
    fn offer_often(watch: &mut SocketWatch, fd: &OwnedFd, socks: &[&OwnedFd]) {
        (0..STREAK_MIN).for_each(|_| watch.offer(fd, socks.iter().copied()));
    }

    #[test]
    fn the_busy_socket_is_not_in_the_set_and_makes_way_when_it_is_quiet() {
        let (mut watch, [(a, fd_a), (b, fd_b)]) = (SocketWatch::new().unwrap(), [socket(), socket()]);
        let socks = [&fd_a, &fd_b];
        socks.iter().for_each(|fd| watch.add(fd).unwrap());
        send_to(&a);
        assert!(watch.is_due(Nanos(0)));
        let (ready, count) = watch.ready(Nanos(0));
        assert_eq!(ready[..count], [fd_a.as_raw_fd()]);
        watch.looked(true);
        (1..STREAK_MIN).for_each(|_| watch.offer(&fd_a, socks.iter().copied()));
        assert_eq!(watch.busy(), None);
        watch.offer(&fd_a, socks.iter().copied());
        assert_eq!(watch.busy(), Some(fd_a.as_raw_fd()));
        assert_eq!(watch.ready(Nanos(0)).1, 0, "the busy one is not in the set");
        send_to(&b);
        let (ready, count) = watch.ready(Nanos(0));
        assert_eq!(ready[..count], [fd_b.as_raw_fd()]);
        offer_often(&mut watch, &fd_b, &socks);
        assert_eq!(watch.busy(), Some(fd_a.as_raw_fd()), "the busy one had packets lately");
        (0..QUIET_MAX).for_each(|_| watch.found(false));
        offer_often(&mut watch, &fd_b, &socks);
        assert_eq!(watch.busy(), Some(fd_b.as_raw_fd()));
        let (ready, count) = watch.ready(Nanos(0));
        assert_eq!(ready[..count], [fd_a.as_raw_fd()], "the former one is in the set again");
    }

    #[test]
    fn the_set_is_asked_seldom_while_it_has_nothing() {
        let (mut watch, (_a, fd)) = (SocketWatch::new().unwrap(), socket());
        watch.add(&fd).unwrap();
        offer_often(&mut watch, &fd, &[&fd]);
        let looks = |watch: &mut SocketWatch, bursts: u32| {
            let mut looks = 0;
            for _ in 0..bursts {
                if watch.is_due(Nanos(0)) {
                    let (_, count) = watch.ready(Nanos(0));
                    watch.looked(count > 0);
                    looks += 1;
                }
            }
            looks
        };
        assert_eq!(looks(&mut watch, FOUND_LATELY), FOUND_LATELY);
        assert_eq!(looks(&mut watch, 10 * LOOK_EVERY), 10);
        watch.before_sleep([&fd].into_iter()).unwrap();
        assert_eq!(looks(&mut watch, 8), 8, "somebody is about to sleep");
        watch.after_sleep();
        assert_eq!(looks(&mut watch, FOUND_LATELY), FOUND_LATELY, "it may have been woken by packets");
        assert_eq!(looks(&mut watch, 10 * LOOK_EVERY), 10, "no socket is busy, but another port may be");
        let now = Nanos::from_ms(9);
        assert!(watch.is_due(now), "much may have arrived");
        watch.ready(now);
        assert!(!watch.is_due(now + LOOK_AFTER - Nanos(1)) && watch.is_due(now + LOOK_AFTER));
    }

    #[test]
    fn whoever_sleeps_learns_of_all_packets_though_another_thread_runs_the_worker() {
        let (mut watch, (a, fd)) = (SocketWatch::new().unwrap(), socket());
        watch.add(&fd).unwrap();
        offer_often(&mut watch, &fd, &[&fd]);
        assert_eq!(watch.busy(), Some(fd.as_raw_fd()));
        watch.before_sleep([&fd].into_iter()).unwrap();
        assert!(!is_readable(&[watch.fd()]));
        offer_often(&mut watch, &fd, &[&fd]);
        assert_eq!(watch.busy(), None, "somebody sleeps");
        send_to(&a);
        assert!(is_readable(&[watch.fd()]));
        watch.after_sleep();
        offer_often(&mut watch, &fd, &[&fd]);
        assert_eq!(watch.busy(), Some(fd.as_raw_fd()));
    }
}
