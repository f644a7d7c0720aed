//! `burst why QPN --pcap FILE`: the packets of a queue pair or Jetty that its host has kept, up to the failure.

use super::file::CaptureFile;
use crate::sockets::ShownHost;
use burst_control::capture::captured;
use burst_control::failures::PacketOwner;
use burst_control::socket_path::ProgramKind;
use std::path::Path;

/// Writes the packets of a queue pair or Jetty to a file: those of the first host that has any, of all that this user may ask.
///
/// # Errors
/// A sentence: why there are none, or the system's error.
pub fn write_kept(socket: Option<&Path>, of: PacketOwner, path: &str) -> Result<String, String> {
    let mut refusal = None;
    for ShownHost { mut host, .. } in crate::sockets::hosts(socket, &[ProgramKind::InProcess])? {
        let kept = match host.kept_packets(of) {
            Ok(kept) => kept,
            Err(error) => {
                // That a host keeps none says more than that another one does not know the object.
                let sentence = error.to_string();
                if refusal.is_none() || sentence.contains("not kept") {
                    refusal = Some(sentence);
                }
                continue;
            }
        };
        let (_, packets) = captured(&kept.message).ok_or("the host has sent no message with packets")?;
        if packets.is_empty() {
            return Err(format!("the packets of {of} have been overwritten by later ones"));
        }
        let devices = host.devices().map_err(|error| error.to_string())?;
        let device = devices.iter().find(|device| device.index == kept.device);
        let names = device.map_or(("burst", ""), |device| (device.name.as_str(), device.ifname.as_str()));
        let broken = |error: std::io::Error| format!("{path}: {error}");
        let out = Box::new(std::fs::File::create(path).map_err(broken)?);
        let mut file = CaptureFile::to(out, &[names]).map_err(broken)?;
        for packet in &packets {
            file.packet(0, packet, 0).map_err(broken)?;
        }
        file.flush().map_err(broken)?;
        let until = if kept.is_failed { "up to its failure" } else { "until now" };
        return Ok(format!("{path}: the last {} packets of {of} {until}\n", packets.len()));
    }
    Err(refusal.unwrap_or_else(|| "no host answers".into()))
}
