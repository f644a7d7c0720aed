//! The arguments that name a DPDK device, and the properties of drivers that DPDK cannot report.
//!
//! A device is named as on DPDK's command line: `net_memif0,role=server,socket=/run/x.sock`, `net_tap0,iface=tap7`,
//! `0000:03:00.0`. The defaults of some drivers do not carry a 4 KiB RoCEv2 packet; [`DevArgs::completed`] adds the arguments
//! that the user left out. [`DRIVERS`] is the table of the differences between drivers that cannot be queried.

use core::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The path at which the memif driver listens by default.
const MEMIF_SOCKET: &str = "/run/memif.sock";

/// The pages of DPDK's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pages {
    /// Huge pages if enough are free, else small pages where the device allows them.
    #[default]
    Auto,
    /// Huge pages; without enough of them opening the device fails.
    Huge,
    /// Small pages.
    Small,
}

/// Properties of a driver that cannot be queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverTraits {
    /// Name of the driver, without the number of the device.
    pub name: &'static str,
    /// For drivers of links between processes: the default MTU in bytes, with room for a RoCEv2 MTU of 4096. 0: the device's MTU.
    pub mtu: u16,
    /// Whether the driver accepts frames of any length whatever its MTU is, and refuses to set another MTU.
    pub ignores_mtu: bool,
    /// Whether a client that has lost its server must be restarted.
    pub reconnects: bool,
    /// Arguments that are added when they are missing.
    pub defaults: &'static [(&'static str, &'static str)],
    /// The valid arguments, for a driver that ignores wrong ones. Empty: the driver reports them itself.
    pub arguments: &'static [&'static str],
}

/// MTU of links between processes, in bytes: 40 IPv6 + 8 UDP + 28 transport + 4096 + 4 ICRC, rounded up.
const OWN_MTU: u16 = 4200;

/// The special drivers. Every other driver counts as physical: it owns a packet until it returns it.
pub const DRIVERS: &[DriverTraits] = &[
    DriverTraits {
        name: "net_memif",
        mtu: OWN_MTU,
        ignores_mtu: true,
        reconnects: true,
        // A frame fits one buffer, because the driver of DPDK 22.11 does not end chains of buffers. The ring keeps its default of
        // 1024 packets:
        // a ring of 256 fits the L2 cache but was a little slower, because the sender waits for the receiver.
        defaults: &[("bsize", "4224"), ("socket-abstract", "no")],
        arguments: &["role", "id", "bsize", "rsize", "socket", "socket-abstract", "mac", "secret", "zero-copy"],
    },
    DriverTraits {
        name: "net_ring",
        mtu: OWN_MTU,
        ignores_mtu: true,
        reconnects: false,
        defaults: &[],
        arguments: &[],
    },
    DriverTraits {
        name: "net_null",
        mtu: OWN_MTU,
        ignores_mtu: true,
        reconnects: false,
        defaults: &[],
        arguments: &[],
    },
    DriverTraits { name: "net_tap", mtu: 0, ignores_mtu: false, reconnects: false, defaults: &[], arguments: &[] },
    DriverTraits {
        name: "net_af_packet",
        mtu: 0,
        ignores_mtu: true,
        reconnects: false,
        defaults: &[("blocksz", "16384"), ("framesz", "8192"), ("framecnt", "512"), ("qdisc_bypass", "1")],
        arguments: &[],
    },
    DriverTraits { name: "net_pcap", mtu: 0, ignores_mtu: true, reconnects: false, defaults: &[], arguments: &[] },
];

/// Properties of a driver that is not in the table.
const PHYSICAL: DriverTraits =
    DriverTraits { name: "", mtu: 0, ignores_mtu: false, reconnects: false, defaults: &[], arguments: &[] };

/// Name and arguments of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevArgs {
    text: String,
}

impl DevArgs {
    /// Parses the text that the user wrote.
    ///
    /// # Errors
    /// A sentence that leaves out the subject, for the caller to complete.
    pub fn parse(text: &str) -> Result<DevArgs, String> {
        let text = text.trim().trim_end_matches(',');
        if text.split(',').next().is_none_or(|name| name.trim().is_empty()) {
            return Err("names no device; write for example dev=net_memif0 or dev=0000:03:00.0".into());
        }
        Ok(DevArgs { text: text.to_owned() })
    }
    /// The device's name: `net_memif0`.
    pub fn name(&self) -> &str {
        self.text.split(',').next().unwrap_or_default().trim()
    }
    /// The value of an argument.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.text.split(',').skip(1).filter_map(|pair| pair.split_once('=')).find(|(k, _)| *k == key).map(|(_, v)| v)
    }
    /// Properties of the driver, found by the device's name.
    pub fn driver(&self) -> DriverTraits {
        let stem = self.name().trim_end_matches(|c: char| c.is_ascii_digit());
        DRIVERS.iter().find(|d| d.name == stem).copied().unwrap_or(PHYSICAL)
    }
    /// Whether the name is that of a virtual device, which needs neither huge pages nor a bus address.
    pub fn is_virtual(&self) -> bool {
        !self.name().contains(':')
    }
    /// Whether this end of the device connects to the other end.
    pub fn is_client(&self) -> bool {
        self.driver().reconnects && !matches!(self.get("role"), Some("server" | "master"))
    }
    /// The path at which this end of a memif listens for the other.
    pub fn server_socket(&self) -> Option<&Path> {
        let waits = self.driver().reconnects && !self.is_client() && self.get("socket-abstract") == Some("no");
        waits.then(|| Path::new(self.get("socket").unwrap_or(MEMIF_SOCKET)))
    }
    /// Removes the socket file of a process that was killed: no process listens there any more, and the driver would refuse the
    /// file.
    pub fn remove_stale_socket(&self) {
        let Some(path) = self.server_socket() else { return };
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
        let is_dead = || UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
        // If the file cannot be removed, the driver reports it.
        if is_socket && is_dead() && std::fs::remove_file(path).is_ok() {
            tracing::info!("{}: removed the socket file of a process that is gone", path.display());
        }
    }
    /// The arguments with the driver's defaults for those that are missing.
    #[must_use]
    pub fn completed(&self) -> DevArgs {
        let mut text = self.text.clone();
        for (key, value) in self.driver().defaults.iter().filter(|(key, _)| self.get(key).is_none()) {
            text.push_str(&format!(",{key}={value}"));
        }
        DevArgs { text }
    }
    /// Finds mistakes that the driver would ignore.
    ///
    /// # Errors
    /// A sentence that names the wrong argument and the valid ones.
    pub fn check(&self) -> Result<(), String> {
        let known = self.driver().arguments;
        let wrong = |pair: &&str| !known.contains(&pair.split('=').next().unwrap_or(pair));
        match self.text.split(',').skip(1).find(wrong).filter(|_| !known.is_empty()) {
            None => Ok(()),
            Some(pair) => {
                Err(format!("DPDK device {} has no argument '{pair}'; it has {}", self.name(), known.join(", ")))
            }
        }
    }
    /// Bytes that a receive buffer must have, whatever the MTU is.
    pub fn room_min(&self) -> u32 {
        let framesz = self.get("framesz").and_then(|v| v.parse().ok());
        framesz.filter(|_| self.driver().name == "net_af_packet").unwrap_or(0)
    }
    /// Bytes of the longest frame that the arguments allow, if they limit it.
    pub fn frame_max(&self) -> Option<u32> {
        /// Bytes that an AF_PACKET ring puts before a frame.
        const RING_HEADER: u32 = 64;
        let number = |key| self.get(key).and_then(|v| v.parse::<u32>().ok());
        match self.driver().name {
            "net_memif" => number("bsize"),
            "net_af_packet" => number("framesz").map(|size| size.saturating_sub(RING_HEADER)),
            _ => None,
        }
    }
}

impl fmt::Display for DevArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn args(text: &str) -> DevArgs {
        DevArgs::parse(text).expect("a name")
    }

    #[test]
    fn names_and_arguments_are_parsed() {
        let memif = args("net_memif0,role=server,socket=/tmp/a.sock");
        assert_eq!((memif.name(), memif.get("role"), memif.get("rol")), ("net_memif0", Some("server"), None));
        assert_eq!(memif.driver().name, "net_memif");
        assert!(memif.is_virtual() && !memif.is_client());
        assert!(args("net_memif1").is_client());
        assert!(DevArgs::parse("").is_err() && DevArgs::parse(" ,a=b").is_err());
    }

    #[test]
    fn physical_devices_keep_their_arguments() {
        let nic = args("0000:03:00.0,txq_inline=128");
        assert!(!nic.is_virtual() && !nic.is_client());
        assert_eq!(nic.completed(), nic);
        assert_eq!(nic.frame_max(), None);
    }

    #[test]
    fn defaults_are_added_for_missing_arguments() {
        let memif = args("net_memif0,bsize=8192").completed();
        assert_eq!((memif.get("bsize"), memif.get("socket-abstract")), (Some("8192"), Some("no")));
        assert_eq!(args("net_memif0").completed().frame_max(), Some(4224));
    }

    #[test]
    fn only_the_socket_file_of_a_dead_process_is_removed() {
        let directory = std::env::temp_dir().join(format!("burst-devargs-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let [dead, alive, file] = ["dead", "alive", "file"].map(|name| directory.join(name));
        drop(UnixListener::bind(&dead).unwrap());
        let _listener = UnixListener::bind(&alive).unwrap();
        std::fs::write(&file, "a regular file").unwrap();
        for path in [&dead, &alive, &file] {
            let server = args(&format!("net_memif0,role=server,socket={}", path.display())).completed();
            assert_eq!(server.server_socket(), Some(path.as_path()));
            server.remove_stale_socket();
        }
        assert_eq!([&dead, &alive, &file].map(|path| path.exists()), [false, true, true]);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(args("net_memif0,role=server").completed().server_socket(), Some(Path::new(MEMIF_SOCKET)));
        for other in ["net_memif0", "net_memif0,role=server,socket-abstract=yes", "net_tap0,iface=x"] {
            assert_eq!(args(other).completed().server_socket(), None, "{other}");
        }
    }

    #[test]
    fn mistakes_that_a_driver_would_ignore_are_found() {
        assert!(args("net_memif0,role=server,socket=/x").check().is_ok());
        assert!(args("net_memif0,rol=server").check().unwrap_err().contains("no argument 'rol=server'; it has role, "));
        assert!(args("net_tap0,anything=1").check().is_ok(), "the driver says so itself");
    }

    #[test]
    fn the_default_mtu_carries_the_largest_roce_packet() {
        // Ethernet, IPv6, UDP, BTH and RETH, payload, ICRC.
        let frame = 14 + 40 + 8 + 12 + 16 + 4096 + 4;
        assert!(args("net_memif0").completed().frame_max().is_some_and(|max| max >= frame));
        assert!(u32::from(OWN_MTU) + 14 >= frame && u32::from(OWN_MTU) + 18 <= 4224);
    }
}
