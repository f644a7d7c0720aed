//! A capture of what passes the switch: pcapng, with an interface `NAME in` and an interface `NAME out` for each port. A packet
//! that is only at an `in` was dropped.

use crate::frame::EthernetFrame;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Exponent of the resolution of times: nanoseconds.
const RESOLUTION: u8 = 9;

/// A file that is being written.
pub struct SwitchCapture {
    writer: PcapNgWriter<BufWriter<File>>,
    /// The time of the day at the switch's time 0.
    began: Duration,
}

impl SwitchCapture {
    /// A new file for the packets of these ports.
    ///
    /// # Errors
    /// A sentence.
    pub fn create(path: &Path, ports: &[String]) -> Result<SwitchCapture, String> {
        let explain = |e: PcapError| format!("{}: {e}", path.display());
        let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut writer = PcapNgWriter::new(BufWriter::new(file)).map_err(explain)?;
        for port in ports {
            for direction in ["in", "out"] {
                let block = InterfaceDescriptionBlock {
                    linktype: DataLink::ETHERNET,
                    snaplen: 0,
                    options: vec![
                        InterfaceDescriptionOption::IfName(Cow::Owned(format!("{port} {direction}"))),
                        InterfaceDescriptionOption::IfTsResol(RESOLUTION),
                    ],
                };
                writer.write_pcapng_block(block).map_err(explain)?;
            }
        }
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(SwitchCapture { writer, began })
    }

    /// Writes a frame that came in by a port, or left by it, at `now` picoseconds.
    ///
    /// # Errors
    /// A sentence.
    pub fn frame(&mut self, now: u64, port: u32, is_out: bool, frame: &EthernetFrame) -> Result<(), String> {
        let data = frame.ethernet();
        let block = EnhancedPacketBlock {
            interface_id: port * 2 + u32::from(is_out),
            timestamp: self.began + Duration::from_nanos(now / 1000),
            original_len: data.len() as u32,
            data: Cow::Borrowed(data),
            options: Vec::new(),
        };
        self.writer.write_pcapng_block(block).map(|_| ()).map_err(|e| format!("the capture cannot be written: {e}"))
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// A sentence.
    pub fn end(&mut self) -> Result<(), String> {
        self.writer.get_mut().flush().map_err(|e| format!("the capture cannot be written: {e}"))
    }
}
