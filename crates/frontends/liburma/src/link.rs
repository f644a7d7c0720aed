//! The port of an address, by the program's settings.

use burst_engine::urma::UrmaEndpoint;
use burst_port::{Encapsulation, Port, PortKind, PortSpec};
use burst_urma::UrmaConfig;
use std::net::IpAddr;

/// Names the port, as for the engine inside a program.
const PORT_ENV: &str = "BURST_PORT";
/// Frames of one call of the port: with 4 KiB each about as much as a window.
const FRAMES: usize = 128;

/// Largest window of a channel.
const WINDOW_MAX: u32 = 1 << 20;
/// Least window: a message of 64 KiB.
const WINDOW_MIN: u32 = 64 << 10;

/// Bytes that may be in flight to a peer: a quarter of this port's own receive buffer, as the peer's is unknown. The kernel
/// counts twice the length of a train, and half the buffer is left to others.
fn window_max(port: &dyn Port) -> u32 {
    let buffer = |fd| {
        let (mut bytes, mut len) = (0u32, 4);
        // SAFETY: the value is an int; a descriptor that is no socket gives an error.
        let done =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw mut bytes).cast(), &raw mut len) };
        (done == 0).then_some(bytes)
    };
    let least = port.descriptors().into_iter().filter_map(buffer).min();
    least.map_or(WINDOW_MIN, |bytes| (bytes / 4).clamp(WINDOW_MIN, WINDOW_MAX))
}

/// Opens the port of an address, `udp:addr=ADDRESS` or what `BURST_PORT` names, on the address, and makes its node: `config`
/// gets the payload of a packet and the window.
///
/// # Errors
/// A sentence.
pub fn open(address: IpAddr, config: impl FnOnce(u16, u32) -> UrmaConfig) -> Result<UrmaEndpoint, String> {
    let text = std::env::var(PORT_ENV).ok().filter(|text| !text.trim().is_empty());
    let mut spec = PortSpec::parse(text.as_deref().unwrap_or("udp")).map_err(|e| format!("{PORT_ENV}: {e}"))?;
    match &mut spec.kind {
        PortKind::Udp(udp) => udp.addr = Some(address),
        PortKind::Packet(packet) => packet.addr = Some(address),
        PortKind::Dpdk(_) => {}
    }
    let port = burst_port::open(&spec, &Encapsulation::UNIFIED_BUS).map_err(|e| e.to_string())?;
    let window = window_max(&*port);
    UrmaEndpoint::new(port, address, FRAMES, |mtu| config(mtu, window))
}
