//! The port of an address, by the program's settings.

use burst_engine::urma::{UrmaEndpoint, window_max};
use burst_port::{Encapsulation, Port, PortError, PortKind, PortSpec};
use burst_urma::UrmaConfig;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Names the port, as for the engine inside a program.
const PORT_ENV: &str = "BURST_PORT";
/// Frames of one call of the port: with 4 KiB each about as much as a window.
const FRAMES: usize = 128;

/// Longest wait for the link of a device that this process has just opened, and the time between two looks.
const LINK_WAIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until the link of a device is up: a channel that finds no next hop fails before the link of a memif client, or of a
/// network card, is. A device whose other end does not come is used without one.
fn await_link(port: &mut dyn Port) {
    let start = Instant::now();
    while !port.caps().up && start.elapsed() < LINK_WAIT {
        std::thread::sleep(LOOK_EVERY);
        port.refresh();
    }
}

/// The port that the environment names for a node in this process.
pub fn port_of_program() -> Option<String> {
    std::env::var(PORT_ENV).ok().filter(|text| !text.trim().is_empty())
}

/// Opens the port of an address, `udp:addr=ADDRESS` or what `BURST_PORT` names, on the address, and makes its node: `config`
/// gets the payload of a packet and the window.
///
/// # Errors
/// A sentence.
pub fn open(address: IpAddr, config: impl FnOnce(u16, u32) -> UrmaConfig) -> Result<UrmaEndpoint, String> {
    let text = port_of_program();
    let spec = PortSpec::parse(text.as_deref().unwrap_or("udp")).map_err(|e| format!("{PORT_ENV}: {e}"))?;
    let spec = spec.at(address);
    if let PortKind::Dpdk(dpdk) = &spec.kind
        && dpdk.addrs.is_empty()
    {
        return Err(format!("{PORT_ENV} does not give its device the address {address}"));
    }
    #[cfg(feature = "dpdk")]
    burst_port_dpdk::enable();
    let mut port = burst_port::open(&spec, &Encapsulation::UNIFIED_BUS).map_err(|why| match why {
        PortError::Absent { kind, .. } => format!(
            "this liburma.so.0 was built without {kind} ports: load {kind}/liburma.so.0 from the directory of Burst's libraries \
             (make build makes it where lib{kind} is installed), or use a daemon's"
        ),
        why => why.to_string(),
    })?;
    if matches!(spec.kind, PortKind::Dpdk(_)) {
        await_link(&mut *port);
    }
    let window = window_max(&*port);
    UrmaEndpoint::new(port, address, FRAMES, |mtu| config(mtu, window)).map_err(|e| e.to_string())
}
