//! Two network namespaces joined by a veth, and capturing and injecting frames between them.

use super::Deadline;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Bytes of headers.
pub const ETHERNET: usize = 14;
pub const IPV4: usize = 20;
pub const IPV6: usize = 40;
pub const UDP: usize = 8;

/// Runs `a` and `b` in threads with a namespace each, joined by a veth `va`-`vb` of this MTU, with addresses 10.77.0.1 and
/// 10.77.0.2, fd77::1 and fd77::2. False, with a message, without the privilege for it.
pub fn in_namespaces(mtu: u32, a: impl FnOnce(Wire) + Send + 'static, b: impl FnOnce(Wire) + Send + 'static) -> bool {
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: needs root to make network namespaces");
        return false;
    }
    let (to_a, from_b) = channel();
    let (to_b, from_a) = channel();
    let (tid, peer_tid) = channel();
    let right = thread::spawn(move || {
        enter_new_namespace();
        // SAFETY: no arguments, no effect.
        tid.send(unsafe { libc::gettid() }).unwrap();
        let wire = Wire { tell: to_a, hear: from_a };
        wire.wait();
        ip(&format!("link set vb mtu {mtu} up"));
        ip("addr add 10.77.0.2/24 dev vb");
        ip("addr add fd77::2/64 dev vb nodad");
        wire.go();
        while !burst_netif::iface::find("vb").unwrap().up {
            thread::sleep(Duration::from_millis(1));
        }
        b(wire);
        // The namespace, and with it the veth, stays until side `a` has ended, too.
        File::open("/proc/thread-self/ns/net").unwrap()
    });
    let left = thread::spawn(move || {
        enter_new_namespace();
        let wire = Wire { tell: to_b, hear: from_b };
        ip("link add va type veth peer name vb");
        ip(&format!("link set vb netns {}", peer_tid.recv().unwrap()));
        ip(&format!("link set va mtu {mtu} up"));
        ip("addr add 10.77.0.1/24 dev va");
        ip("addr add fd77::1/64 dev va nodad");
        wire.go();
        wire.wait();
        // The kernel enables the queues some time after the command that sets the link up; until then it drops packets.
        while !burst_netif::iface::find("va").unwrap().up {
            thread::sleep(Duration::from_millis(1));
        }
        a(wire);
    });
    let right = right.join();
    left.join().unwrap();
    drop(right.unwrap());
    true
}

/// How the two sides wait for each other.
pub struct Wire {
    tell: Sender<()>,
    hear: Receiver<()>,
}

impl Wire {
    pub fn go(&self) {
        let _ = self.tell.send(());
    }
    pub fn wait(&self) {
        self.hear.recv_timeout(Duration::from_secs(20)).expect("the other side goes on");
    }
}

fn enter_new_namespace() {
    // SAFETY: changes the network namespace of this thread only.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", std::io::Error::last_os_error());
    ip("link set lo up");
}

/// Runs `ip` in this thread's namespace.
pub fn ip(arguments: &str) {
    run("ip", arguments);
}

/// Runs a program in this thread's namespace.
pub fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().expect("scripts/install-deps has been run");
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Captures the frames that arrive in this namespace.
pub struct Capture(File);

impl Capture {
    pub fn new() -> Capture {
        let protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a fresh descriptor.
        Capture(unsafe { File::from_raw_fd(fd) })
    }
    /// Returns `count` frames to UDP port 4791 that arrive within two seconds.
    pub fn take(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (mut frames, mut deadline) = (Vec::new(), Deadline::new(Duration::from_secs(2)));
        let mut buffer = vec![0; 70_000];
        while frames.len() < count {
            match self.0.read(&mut buffer) {
                Ok(n) if is_roce(&buffer[..n]) => frames.push(buffer[..n].to_vec()),
                Ok(_) => {}
                Err(_) if deadline.nap() => {}
                Err(_) => break,
            }
        }
        frames
    }
}

impl Capture {
    /// Returns every frame that arrives within this time.
    pub fn all(&mut self, time: Duration) -> Vec<Vec<u8>> {
        let (mut frames, mut deadline) = (Vec::new(), Deadline::new(time));
        let mut buffer = vec![0; 70_000];
        loop {
            match self.0.read(&mut buffer) {
                Ok(n) => frames.push(buffer[..n].to_vec()),
                Err(_) if deadline.nap() => {}
                Err(_) => return frames,
            }
        }
    }
}

/// Whether a frame is to UDP port 4791.
pub fn is_roce(frame: &[u8]) -> bool {
    let udp = match frame.get(12..14) {
        Some([0x08, 0x00]) => ETHERNET + IPV4,
        Some([0x86, 0xdd]) => ETHERNET + IPV6,
        _ => return false,
    };
    frame.get(udp + 2..udp + 4) == Some(&4791u16.to_be_bytes())
}

/// Sends whole frames on an interface.
pub struct Injector(File);

impl Injector {
    pub fn new(device: &str) -> Injector {
        let index = burst_netif::iface::find(device).unwrap().index;
        // SAFETY: no pointers; then a socket address of the length given, all zero but what is set.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
            let mut name: libc::sockaddr_ll = core::mem::zeroed();
            (name.sll_family, name.sll_ifindex) = (libc::AF_PACKET as u16, index as i32);
            name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            let len = size_of_val(&name) as libc::socklen_t;
            assert_eq!(libc::bind(fd, (&raw const name).cast(), len), 0, "{}", std::io::Error::last_os_error());
            fd
        };
        // SAFETY: a fresh descriptor.
        Injector(unsafe { File::from_raw_fd(fd) })
    }
    /// Sends whole trains: a virtio header precedes each frame.
    pub fn of_trains(device: &str) -> Injector {
        let injector = Injector::new(device);
        let (fd, on) = (injector.0.as_raw_fd(), 1i32);
        // SAFETY: the option's value is an int that lives during the call.
        let done = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_VNET_HDR,
                (&raw const on).cast(),
                size_of_val(&on) as u32,
            )
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        injector
    }
    pub fn send(&mut self, frame: &[u8]) {
        assert_eq!(self.0.write(frame).unwrap(), frame.len());
    }
}

/// The MAC address of an interface.
pub fn mac_of(device: &str) -> [u8; 6] {
    burst_netif::iface::find(device).unwrap().mac
}
