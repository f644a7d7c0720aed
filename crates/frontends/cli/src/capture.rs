//! `burst capture`: the packets of a running daemon, as lines, as a file for Wireshark or as a drawing; and those of files.

pub mod file;
mod filter;
mod kept;
mod ladder;
mod lines;
mod read;

pub use kept::write_kept;

use burst_client::Daemon;
use burst_control::DeviceInfo;
use burst_control::capture::{CAPTURE_MESSAGE_MAX, CapturedPacket, captured};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use file::CaptureFile;
use filter::PacketFilter;
use ladder::{LADDER_PACKETS, LADDER_PACKETS_MAX};
use lines::line_of;
use read::SeenPacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of each packet that a line needs.
const SNAP_OF_LINES: u16 = 128;
/// Longest time without a look at signals and `--for`.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Words and flags of `burst capture`.
pub fn command() -> Command {
    Command::new("capture")
        .about("Show the packets of a daemon's ports, or write them for Wireshark")
        .long_about(
            "Show the packets of a daemon's ports, or write them for Wireshark.\n\n\
             The daemon copies what its workers send and receive, packets within this host and those of URMA included, so no privilege for \
             the interface is needed: root and the user who runs the daemon may do it. --socket names a daemon, or a program with an \
             engine of its own (in-process-PID.sock beside the daemon's socket). The copies are taken above the port: without invariant \
             CRC, and before an impairment loses a packet that is sent. A received packet that was dropped or refused has the reason: in \
             the line, and in a file as its comment. A daemon that is not captured pays nothing. Packets are lost in the capture, not in \
             the network, if they come faster than they are written; the end says how many.\n\n\
             --svg draws a ladder: two hosts, an arrow for each packet, times at the sides. With the captures of both hosts (--read, twice) \
             it marks the packets that were lost between them.",
        )
        .after_help(
            "burst capture                                     # a line for each packet\n\
             burst capture burst0 -w packets.pcapng --for 10s\n\
             burst capture -w - | tshark -X lua_script:/usr/local/share/burst/burst.lua -r -\n\
             burst capture --qp 0x11f --stage dropped,refused  # what the host did not accept\n\
             burst capture --read a.pcapng --read b.pcapng --svg ladder.svg",
        )
        .arg(Arg::new("port").value_name("PORT").help("Device (burst0) or its interface (eth0) [default: all]"))
        .arg(Arg::new("write").short('w').long("write").value_name("FILE").help("Write pcapng to this file; `-`: to stdout"))
        .arg(
            Arg::new("snap")
                .long("snap")
                .value_name("BYTES")
                .value_parser(value_parser!(u16))
                .help("Bytes of each packet behind the UDP header [default: all, without -w 128]"),
        )
        .arg(Arg::new("count").long("count").value_name("N").value_parser(packets).help("End after N packets"))
        .arg(Arg::new("for").long("for").value_name("TIME").value_parser(time_of_capture).help("End after this time"))
        .arg(
            Arg::new("read")
                .long("read")
                .value_name("FILE")
                .action(ArgAction::Append)
                .conflicts_with_all(["write", "port", "snap", "for", "socket"])
                .help("Show the packets of this pcapng file instead; twice: of two hosts"),
        )
        .arg(
            Arg::new("svg")
                .long("svg")
                .value_name("FILE")
                .conflicts_with("write")
                .help("Draw a ladder of the first packets (30, or --count) between two hosts as SVG; `-`: to stdout"),
        )
        .args(filter::args())
        .arg(crate::socket())
}

/// Reads the number of `--count`.
fn packets(text: &str) -> Result<u64, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("write a number of packets from 1, or leave it out")
}

/// Reads the time of `--for`.
fn time_of_capture(text: &str) -> Result<Duration, &'static str> {
    let time = burst_grammar::duration(text)?;
    if time.is_zero() {
        Err("the capture would end at once: write a time such as 10s, or leave it out")
    } else {
        Ok(time)
    }
}

/// Runs `burst capture`: the exit code.
pub fn capture(matches: &ArgMatches) -> ExitCode {
    match run(matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => crate::fail(why),
    }
}

/// Where packets go.
enum Output {
    Lines(std::io::Stdout),
    File(CaptureFile),
    /// They are drawn at the end.
    Ladder(Vec<SeenPacket>),
}

impl Output {
    /// Lines without a target, else a file; `-` is stdout.
    fn open(matches: &ArgMatches, devices: &[DeviceInfo]) -> Result<Output, String> {
        if matches.contains_id("svg") {
            return Ok(Output::Ladder(Vec::new()));
        }
        let Some(path) = matches.get_one::<String>("write") else { return Ok(Output::Lines(std::io::stdout())) };
        let out: Box<dyn Write> = match path.as_str() {
            "-" => Box::new(std::io::stdout()),
            path => Box::new(std::fs::File::create(path).map_err(|e| format!("{path}: {e}"))?),
        };
        let names: Vec<_> = devices.iter().map(|device| (device.name.as_str(), device.ifname.as_str())).collect();
        Ok(Output::File(CaptureFile::to(out, &names).map_err(|e| format!("{path}: {e}"))?))
    }
    fn write(&mut self, device: usize, packet: &CapturedPacket<'_>, lost: u64) -> std::io::Result<()> {
        match self {
            Output::Lines(out) => out.write_all(line_of(packet).as_bytes()),
            Output::File(file) => file.packet(device, packet, lost),
            Output::Ladder(packets) => {
                packets.push(SeenPacket::of(packet));
                Ok(())
            }
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Output::Lines(out) => out.flush(),
            Output::File(file) => file.flush(),
            Output::Ladder(_) => Ok(()),
        }
    }
}

/// A socket of a worker.
struct CaptureSource {
    device: usize,
    socket: OwnedFd,
}

/// What has come.
#[derive(Default)]
struct CaptureTotals {
    packets: u64,
    lost: u64,
}

fn run(matches: &ArgMatches) -> Result<(), String> {
    if let Some(paths) = matches.get_many::<String>("read") {
        return show_files(matches, &paths.map(String::as_str).collect::<Vec<_>>());
    }
    let mut daemon = crate::sockets::connect(crate::chosen_socket(matches).as_deref())?;
    let devices = chosen(&mut daemon, matches.get_one::<String>("port").map(String::as_str))?;
    let snap = snap_of(matches)?;
    let stop = stop_flag()?;
    let sources = sources_of(&mut daemon, &devices, snap)?;
    // Only now: a refused capture leaves a file of that name as it is.
    let output = Output::open(matches, &devices)?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    eprintln!("burst: capturing {}", names.join(", "));
    let until = matches.get_one::<Duration>("for").map(|time| Instant::now() + *time);
    let filter = PacketFilter::from_matches(matches);
    let count = count_of(matches)?.unwrap_or(u64::MAX);
    let mut capture = RunningCapture { sources, output, filter, totals: CaptureTotals::default(), count };
    let broken = |error: std::io::Error| format!("the capture has broken off: {error}");
    let goes_on = || !stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until);
    if !capture.until_over(goes_on).map_err(broken)? {
        capture.take_the_rest().map_err(broken)?;
    }
    eprintln!("burst: {}", sentence(&capture.totals));
    match capture.output {
        Output::Ladder(packets) => draw(matches, &[packets]),
        Output::Lines(_) | Output::File(_) => Ok(()),
    }
}

/// Bytes that are captured of each packet: what a line needs, or all for a file, if nothing is said.
fn snap_of(matches: &ArgMatches) -> Result<u16, String> {
    let target = matches.get_one::<String>("write");
    if target.is_some_and(|target| target == "-") && std::io::stdout().is_terminal() {
        return Err(
            "a capture is no text for a terminal: name a file, or a program: `burst capture -w - | tshark -r -`".into(),
        );
    }
    Ok(matches.get_one("snap").copied().unwrap_or(if target.is_none() { SNAP_OF_LINES } else { u16::MAX }))
}

/// Packets after which a capture ends: of a ladder not too many to be read.
fn count_of(matches: &ArgMatches) -> Result<Option<u64>, String> {
    let count = matches.get_one::<u64>("count").copied();
    if !matches.contains_id("svg") {
        return Ok(count);
    }
    match count.unwrap_or(LADDER_PACKETS) {
        count if count > LADDER_PACKETS_MAX => {
            Err(format!("a ladder has {LADDER_PACKETS_MAX} packets at most: write a smaller --count"))
        }
        count => Ok(Some(count)),
    }
}

/// Shows the packets of files: a line for each, or a ladder.
fn show_files(matches: &ArgMatches, paths: &[&str]) -> Result<(), String> {
    let filter = PacketFilter::from_matches(matches);
    let mut captures = Vec::new();
    for path in paths {
        let mut packets = read::packets_of(path)?;
        packets.retain(|packet| filter.takes(&packet.packet()));
        captures.push(packets);
    }
    if matches.contains_id("svg") {
        return draw(matches, &captures);
    }
    let most = count_of(matches)?.unwrap_or(u64::MAX);
    let mut packets: Vec<&SeenPacket> = captures.iter().flatten().collect();
    packets.sort_by_key(|packet| packet.packet().at_ns);
    let shown = packets.iter().take(usize::try_from(most).unwrap_or(usize::MAX));
    crate::print(&shown.map(|packet| line_of(&packet.packet())).collect::<String>())
}

/// Writes the ladder of `--svg`.
fn draw(matches: &ArgMatches, captures: &[Vec<SeenPacket>]) -> Result<(), String> {
    let Some(path) = matches.get_one::<String>("svg") else { return Ok(()) };
    let most = count_of(matches)?.unwrap_or(LADDER_PACKETS);
    let text = ladder::ladder(captures, usize::try_from(most).unwrap_or(usize::MAX))?;
    match path.as_str() {
        "-" => crate::print(&text),
        path => std::fs::write(path, text).map_err(|error| format!("{path}: {error}")),
    }
}

/// A flag that SIGINT and SIGTERM set.
fn stop_flag() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|e| e.to_string())?;
    }
    Ok(stop)
}

/// The sockets of all workers of the devices.
fn sources_of(daemon: &mut Daemon, devices: &[DeviceInfo], snap: u16) -> Result<Vec<CaptureSource>, String> {
    let mut sources = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let sockets = daemon.capture(device.index, snap).map_err(|e| e.to_string())?;
        sources.extend(sockets.into_iter().map(|socket| CaptureSource { device: index, socket }));
    }
    Ok(sources)
}

fn sentence(totals: &CaptureTotals) -> String {
    let lost =
        if totals.lost == 0 { String::new() } else { format!("; {} more came too fast and are missing", totals.lost) };
    format!("{} packets captured{lost}", totals.packets)
}

/// The devices on a port, all without a name.
fn chosen(daemon: &mut Daemon, port: Option<&str>) -> Result<Vec<DeviceInfo>, String> {
    let devices = crate::ls::devices(daemon)?;
    let Some(port) = port else { return Ok(devices) };
    crate::impair::find(&devices, port).map(|device| vec![device.clone()])
}

/// A capture that has begun.
struct RunningCapture {
    sources: Vec<CaptureSource>,
    output: Output,
    filter: PacketFilter,
    totals: CaptureTotals,
    /// Packets after which it ends.
    count: u64,
}

impl RunningCapture {
    /// Takes packets while `goes_on()`. True if nothing is left to be taken: there were enough, or their reader or the daemon has
    /// ended.
    fn until_over(&mut self, goes_on: impl Fn() -> bool) -> std::io::Result<bool> {
        while goes_on() {
            match self.take() {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                // A reader that has read enough is no fault: `burst capture | head`.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(true),
                Err(error) => return Err(error),
            }
            if self.sources.is_empty() {
                eprintln!("burst: the daemon has ended");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes what has come before the end.
    fn take_the_rest(&mut self) -> std::io::Result<()> {
        let mut before = u64::MAX;
        while before != self.totals.packets {
            before = self.totals.packets;
            self.take()?;
        }
        Ok(())
    }

    /// Waits a moment, and takes what has come. True when `count` packets have.
    fn take(&mut self) -> std::io::Result<bool> {
        let timeout = Timespec::try_from(LOOK_EVERY).expect("a short time");
        let mut fds: Vec<PollFd<'_>> =
            self.sources.iter().map(|source| PollFd::new(&source.socket, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (mut buffer, mut gone) = (vec![0; CAPTURE_MESSAGE_MAX], Vec::new());
        let (totals, count, filter) = (&mut self.totals, self.count, &self.filter);
        for (at, source) in self.sources.iter().enumerate().filter(|(at, _)| ready[*at]) {
            match recv(&source.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) if len > 0 => {
                    let (mut lost, packets) = captured(&buffer[..len]).ok_or(std::io::ErrorKind::InvalidData)?;
                    totals.lost += lost;
                    for packet in packets.into_iter().filter(|packet| filter.takes(packet)) {
                        if totals.packets >= count {
                            break;
                        }
                        self.output.write(source.device, &packet, lost)?;
                        (totals.packets, lost) = (totals.packets + 1, 0);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(_) | Err(_) => gone.push(at),
            }
        }
        for at in gone.into_iter().rev() {
            self.sources.remove(at);
        }
        self.output.flush()?;
        Ok(self.totals.packets >= self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_of_nothing_is_refused() {
        for words in [["--count", "0"], ["--count", "many"], ["--for", "0"], ["--for", "soon"]] {
            let args = ["capture"].iter().chain(&words).map(std::ffi::OsString::from);
            let refused = burst_args::check(command(), args).expect_err("refused");
            let burst_args::ArgsRefusal::Wrong(sentence) = refused else { panic!("{words:?}") };
            assert!(sentence.contains(words[0]) && sentence.contains("write"), "{sentence}");
        }
        assert_eq!((packets("3"), time_of_capture("2s")), (Ok(3), Ok(Duration::from_secs(2))));
    }

    #[test]
    fn what_is_lost_is_said() {
        assert_eq!(sentence(&CaptureTotals { packets: 5, lost: 0 }), "5 packets captured");
        assert_eq!(
            sentence(&CaptureTotals { packets: 5, lost: 2 }),
            "5 packets captured; 2 more came too fast and are missing"
        );
    }
}
