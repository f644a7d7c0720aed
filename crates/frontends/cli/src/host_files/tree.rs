//! The tree under `/sys/class/infiniband`: the files that a kernel driver of a RoCEv2 NIC would have, as text.
//!
//! `DEVICE/device` is a link to the bus device of the interface, if it has one, so that programs learn the topology; for a
//! virtual interface it is a directory with the files that programs read of a bus device. Counters have the daemon's values at
//! the time of writing, or of the last [`rewrite_counters`].

use super::counters::{LIFESPAN, LIFESPAN_MS, counters};
use super::directory::OpenDirectory;
use burst_control::{Counter, DeviceInfo, GidInfo};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Line rates in the words of sysfs: minimum speed in Mbit/s, and text. The steps are those of the library's port attributes.
const RATES: &[(u32, &str)] = &[
    (400_000, "400 Gb/sec (4X NDR)"),
    (200_000, "200 Gb/sec (4X HDR)"),
    (100_000, "100 Gb/sec (4X EDR)"),
    (56_000, "56 Gb/sec (4X FDR)"),
    (50_000, "50 Gb/sec (1X HDR)"),
    (40_000, "40 Gb/sec (4X QDR)"),
    (25_000, "25 Gb/sec (1X EDR)"),
    (14_000, "14 Gb/sec (1X FDR)"),
    (10_000, "10 Gb/sec (1X QDR)"),
    (5_000, "5 Gb/sec (1X DDR)"),
    (0, "2.5 Gb/sec (1X SDR)"),
];

/// Writes the devices below `classes/infiniband`.
///
/// # Errors
/// The first file that could not be written.
pub fn write(classes: &OpenDirectory, devices: &[DeviceInfo], counters: &[Counter]) -> io::Result<()> {
    let infiniband = classes.enter("infiniband")?;
    for device in devices {
        let own: Vec<&Counter> = counters.iter().filter(|c| c.device == device.name).collect();
        let place = infiniband.enter(&device.name)?;
        for (path, text) in files(device, &own) {
            place.put(&path, &text)?;
        }
        write_bus_device(&place, device)?;
    }
    Ok(())
}

/// Writes the present values of the counters into the files that [`write`] has made. A reader sees the value of before or of now.
///
/// # Errors
/// The first file that could not be written.
pub fn rewrite_counters(classes: &OpenDirectory, devices: &[DeviceInfo], all: &[Counter]) -> io::Result<()> {
    let infiniband = classes.enter("infiniband")?;
    for device in devices {
        let own: Vec<&Counter> = all.iter().filter(|c| c.device == device.name).collect();
        let place = infiniband.enter(&device.name)?;
        for (path, value) in counters(&own) {
            place.rewrite(&path, &value.to_string())?;
        }
    }
    Ok(())
}

/// Whether a directory has this device with these addresses.
pub fn shows(place: &Path, device: &DeviceInfo) -> bool {
    files(device, &[])
        .iter()
        .filter(|(path, _)| path == "node_guid" || path.starts_with("ports/1/gid"))
        .all(|(path, text)| fs::read_to_string(place.join(path)).is_ok_and(|found| found.trim_end() == text))
}

/// Paths below the device's directory, and contents without the final newline.
fn files(device: &DeviceInfo, counters_of: &[&Counter]) -> Vec<(String, String)> {
    let guid = quads(&device.guid.to_be_bytes());
    let mut all: Vec<(String, String)> = [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", &device.name),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("hw_rev", "0"),
        ("hca_type", "burst"),
        ("board_id", "burst"),
        ("ports/1/state", if device.up { "4: ACTIVE" } else { "1: DOWN" }),
        ("ports/1/phys_state", if device.up { "5: LinkUp" } else { "3: Disabled" }),
        ("ports/1/rate", rate(device.speed_mbps)),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/lid", "0x0"),
        ("ports/1/lid_mask_count", "0"),
        ("ports/1/sm_lid", "0x0"),
        ("ports/1/sm_sl", "0"),
        // Capability mask: bit 16 is connection management, bit 26 means that GIDs are IP addresses.
        ("ports/1/cap_mask", "0x04010000"),
        ("ports/1/pkeys/0", "0xffff"),
    ]
    .iter()
    .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
    .collect();
    for (index, gid) in device.gids.iter().enumerate() {
        all.extend(gid_files(index, gid));
    }
    all.extend(counters(counters_of).into_iter().map(|(path, value)| (path, value.to_string())));
    all.push((format!("ports/1/hw_counters/{LIFESPAN}"), LIFESPAN_MS.to_string()));
    all
}

fn gid_files(index: usize, gid: &GidInfo) -> [(String, String); 3] {
    [
        (format!("ports/1/gids/{index}"), quads(&gid.gid)),
        (format!("ports/1/gid_attrs/types/{index}"), "RoCE v2".to_owned()),
        (format!("ports/1/gid_attrs/ndevs/{index}"), gid.ifname.clone()),
    ]
}

/// The bus device: a link to the interface's, or a directory in its place.
fn write_bus_device(place: &OpenDirectory, device: &DeviceInfo) -> io::Result<()> {
    let interface = PathBuf::from("/sys/class/net").join(&device.ifname);
    if !device.ifname.is_empty()
        && let Ok(real) = fs::canonicalize(interface.join("device"))
    {
        return place.link("device", &real);
    }
    // All processors are equally near.
    let local = fs::read_to_string("/sys/devices/system/node/node0/cpumap").unwrap_or_else(|_| "1".to_owned());
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0".to_owned());
    let facts = [
        ("numa_node", "-1"),
        ("local_cpus", &local),
        ("local_cpulist", &list),
        ("vendor", "0x0000"),
        ("device", "0x0000"),
    ];
    for (path, text) in facts {
        place.put(&format!("device/{path}"), text.trim_end())?;
    }
    let net = place.enter("device")?.enter("net")?;
    if device.ifname.is_empty() { Ok(()) } else { net.link(&device.ifname, &interface) }
}

fn rate(mbps: u32) -> &'static str {
    RATES.iter().find(|(least, _)| *least <= mbps).map_or("", |(_, text)| text)
}

/// Groups of four digits with colons, as sysfs writes GIDs and GUIDs.
fn quads(bytes: &[u8]) -> String {
    bytes.chunks(2).map(|p| format!("{:02x}{:02x}", p[0], p[1])).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_sysfs() {
        assert_eq!(quads(&[0, 1, 2, 3, 4, 5, 0xfe, 0xff]), "0001:0203:0405:feff");
        assert_eq!(rate(0), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(10_000), "10 Gb/sec (1X QDR)");
        assert_eq!(rate(99_999), "56 Gb/sec (4X FDR)");
        assert_eq!(rate(800_000), "400 Gb/sec (4X NDR)");
    }
}
