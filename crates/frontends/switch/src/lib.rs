//! `burst-switch`, which `burst switch` executes: an Ethernet switch in user space between interfaces of one network namespace,
//! usually the ends of veth pairs whose other ends are in the namespaces of hosts. Its ports have a rate, a buffer, marks (ECN)
//! and faults, so that programs meet a bottleneck that the host's own interfaces do not have. Any traffic passes, not Burst's
//! alone.
//!
//! Exit codes: 0 after SIGINT, SIGTERM, the time of `--for` or the end of the pipe of `--end-with-fd`; 1 failure; 2 usage error.
//!
//! | module | what |
//! |---|---|
//! | [`frame`] | frames with the kernel's header; trains are cut into packets; marks |
//! | [`switch`] | the switch without its sockets, in its own time |
//! | `packet_port` | packet sockets |
//! | `capture` | what passes, for Wireshark |
#![deny(unsafe_code)]

mod capture;
pub mod frame;
#[allow(unsafe_code)]
mod packet_port;
pub mod switch;

use crate::capture::SwitchCapture;
use crate::frame::EthernetFrame;
use crate::packet_port::{FRAME_MAX, SwitchPort};
use crate::switch::{SoftSwitch, SwitchSettings};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Frames that are received from one interface before the others have their turn.
const FRAMES_PER_TURN: usize = 64;
/// The longest wait, after which signals and `--for` are looked at.
const WAIT_MAX: Duration = Duration::from_millis(20);
const PICOSECONDS: u64 = 1_000_000_000_000;

/// Carries out the command line of this process; returns its exit code.
pub fn main() -> ExitCode {
    let matches = match burst_args::parse(command(), std::env::args_os()) {
        Ok(matches) => matches,
        Err(code) => return ExitCode::from(code),
    };
    let settings = match settings(&matches) {
        Ok(settings) => settings,
        Err(sentence) => {
            complain(&sentence);
            return ExitCode::from(burst_args::EXIT_USAGE);
        }
    };
    match SwitchRun::open(&matches, &settings).and_then(|mut forwarding| forwarding.run(&matches)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            complain(&sentence);
            ExitCode::FAILURE
        }
    }
}

fn complain(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "burst switch: {sentence}");
}

/// The grammar of the command line.
pub fn command() -> Command {
    let option = |name: &'static str, value: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .default_value(default)
            .hide_default_value(default.is_empty())
            .allow_hyphen_values(true)
            .help(help)
    };
    Command::new("burst-switch")
        .bin_name("burst switch")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Switch frames between interfaces, with a rate, a buffer, marks and faults (docs/switch.md)")
        .long_about(
            "Switch frames between interfaces, with a rate, a buffer, marks and faults.\n\n\
             Each interface is a port; hosts are at the other ends of its veth pair, bridge or cable. The queue of each port is \
             the simulator's (burst sim). Needs CAP_NET_RAW. Ctrl-C ends it and prints what each port has seen.",
        )
        .after_help("burst switch --rate 300Mbit --buffer 64KiB --ecn 20KiB --json result.json veth0 veth1 veth2")
        .arg(
            Arg::new("interfaces")
                .value_name("INTERFACE")
                .num_args(2..)
                .required(true)
                .help("Interfaces of this network namespace, two or more; they need no address"),
        )
        .arg(Arg::new("rate").long("rate").value_name("RATE").allow_hyphen_values(true).help("Rate of each port, such as 300Mbit [default: unlimited]"))
        .arg(option("buffer", "SIZE", "1MiB", "Buffer that the ports share; what finds no room is dropped"))
        .arg(
            Arg::new("ecn")
                .long("ecn")
                .value_name("SIZE[:SIZE]")
                .allow_hyphen_values(true)
                .help("Mark packets (CE) that find a longer queue; with two sizes with a share that grows between them"),
        )
        .arg(option("delay", "TIME", "0", "Delay from port to port, each way"))
        .arg(option("loss", "SHARE", "0", "Share of packets that are lost, such as 1% or 0.001"))
        .arg(option("dup", "SHARE", "0", "Share of packets that come twice"))
        .arg(option("reorder", "SHARE", "0", "Share of packets that are late, by up to --late"))
        .arg(option("late", "TIME", "1ms", "The longest that a reordered packet is late"))
        .arg(option("seed", "NUMBER", "1", "Seed of what is random").value_parser(value_parser!(u64)))
        .arg(Arg::new("for").long("for").value_name("TIME").allow_hyphen_values(true).value_parser(burst_grammar::duration).help("End after this time [default: at a signal]"))
        .arg(
            Arg::new("end-with-fd")
                .long("end-with-fd")
                .value_name("N")
                .value_parser(value_parser!(u32))
                .help("Descriptor of a pipe's reading end: end once no process has the writing end, as at a signal"),
        )
        .arg(file("json", "Write the results to this file; `-`: to the standard output, without the table"))
        .arg(file("samples", "Write the queues' lengths every 10 ms to this file: seconds, then bytes of each port"))
        .arg(file("capture", "Write what comes in and what goes out to this file, for Wireshark"))
        .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue).help("Print no table at the end"))
}

fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf)).help(help)
}

/// Reads the settings of the switch.
fn settings(matches: &ArgMatches) -> Result<SwitchSettings, String> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let wrong = |name: &'static str, text: &str| {
        let value = format!("--{name} {text:?}");
        move |why: &str| format!("{value} {why}")
    };
    let share = |name: &'static str| share_of(name, text(name).unwrap_or("0"));
    let time = |name: &'static str| -> Result<u64, String> {
        let text = text(name).unwrap_or("0");
        let time = burst_grammar::duration(text).map_err(wrong(name, text))?;
        u64::try_from(time.as_nanos()).ok().and_then(|ns| ns.checked_mul(1000)).ok_or(format!("--{name} is too long"))
    };
    let size = |text: &str, name: &'static str| burst_grammar::bytes(text).map_err(wrong(name, text));
    let ecn = text("ecn").map(|range| -> Result<(u64, u64), String> {
        let (from, to) = range.split_once(':').unwrap_or((range, range));
        let (from, to) = (size(from, "ecn")?, size(to, "ecn")?);
        if from > to { Err(format!("--ecn: {range} ends below its beginning")) } else { Ok((from, to)) }
    });
    let buffer = size(text("buffer").unwrap_or_default(), "buffer")?;
    if buffer < 2048 {
        return Err("--buffer is smaller than a packet: give at least 2KiB".to_owned());
    }
    check_limit(matches)?;
    let rate = text("rate").map(|text| burst_grammar::bits_per_second(text).map_err(wrong("rate", text)));
    Ok(SwitchSettings {
        rate: rate.transpose()?,
        buffer,
        ecn: ecn.transpose()?,
        delay: time("delay")?,
        loss: share("loss")?,
        duplicate: share("dup")?,
        reorder: share("reorder")?,
        late_max: time("late")?,
        seed: matches.get_one::<u64>("seed").copied().unwrap_or(1),
    })
}

/// Refuses a limit of no time.
fn check_limit(matches: &ArgMatches) -> Result<(), String> {
    match matches.get_one::<Duration>("for") {
        Some(limit) if limit.is_zero() => {
            Err("--for 0 would end before a frame has passed: write a time such as 10s, or leave it out".to_owned())
        }
        _ => Ok(()),
    }
}

/// The value of a flag that is a share of packets, from 0 to 1.
fn share_of(name: &str, text: &str) -> Result<f64, String> {
    match text {
        "0" => Ok(0.0),
        _ => match burst_grammar::parts_per_million(text) {
            Ok(ppm) => Ok(f64::from(ppm) / 1e6),
            Err(why) => Err(format!("--{name} {text:?} {why}{}", percentage_hint(text))),
        },
    }
}

/// What to write for a number that is meant as a percentage; nothing for other texts.
fn percentage_hint(text: &str) -> String {
    let is_percentage = text.parse().is_ok_and(|number: f64| (1.0..=100.0).contains(&number));
    if is_percentage { format!(": write {text}%") } else { String::new() }
}

/// Opens the pipe of `--end-with-fd` a second time, so that this process owns what it reads from.
fn starters_pipe(matches: &ArgMatches) -> Result<Option<std::fs::File>, String> {
    let Some(number) = matches.get_one::<u32>("end-with-fd") else { return Ok(None) };
    let opened = std::fs::File::open(format!("/proc/self/fd/{number}"));
    opened.map(Some).map_err(|e| format!("--end-with-fd {number}: no pipe: {e}"))
}

/// The switch and its sockets.
struct SwitchRun {
    interfaces: Vec<SwitchPort>,
    /// A pipe of the process that has started the switch.
    starter: Option<std::fs::File>,
    switch: SoftSwitch,
    began: Instant,
    /// Frames that the kernel did not take.
    not_sent: Vec<u64>,
    out: Vec<(u32, EthernetFrame)>,
    capture: Option<SwitchCapture>,
    samples: Option<Samples>,
}

/// The file of the queues' lengths.
struct Samples {
    file: std::io::BufWriter<std::fs::File>,
    next: u64,
}

impl Samples {
    const EVERY: u64 = PICOSECONDS / 100;
}

impl SwitchRun {
    fn open(matches: &ArgMatches, settings: &SwitchSettings) -> Result<SwitchRun, String> {
        let names: Vec<String> = matches.get_many("interfaces").into_iter().flatten().cloned().collect();
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                return Err(format!("{name} is named twice"));
            }
        }
        let interfaces = names.iter().map(|name| SwitchPort::open(name)).collect::<Result<Vec<_>, _>>()?;
        let path = |name: &str| matches.get_one::<PathBuf>(name);
        let capture = path("capture").map(|path| SwitchCapture::create(path, &names)).transpose()?;
        if let Some(path) = path("json").filter(|path| path.as_os_str() != "-") {
            // Before anything is forwarded: the results would be lost at the end.
            let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
            opened.map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let samples = path("samples").map(|path| {
            let file = std::fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Ok::<_, String>(Samples { file: std::io::BufWriter::new(file), next: 0 })
        });
        Ok(SwitchRun {
            switch: SoftSwitch::new(names.len() as u32, settings)?,
            not_sent: vec![0; names.len()],
            interfaces,
            starter: starters_pipe(matches)?,
            began: Instant::now(),
            out: Vec::new(),
            capture,
            samples: samples.transpose()?,
        })
    }

    /// Picoseconds since the beginning.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).map_or(u64::MAX, |ns| ns.saturating_mul(1000))
    }

    /// Forwards frames until a signal comes or the time is over; then says what has passed.
    fn run(&mut self, matches: &ArgMatches) -> Result<(), String> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|e| format!("signals: {e}"))?;
        }
        let limit = matches.get_one::<Duration>("for").copied();
        let names: Vec<&str> = self.interfaces.iter().map(|one| one.name.as_str()).collect();
        println!("forwarding between {}", names.join(", "));
        let mut buffer = vec![0; FRAME_MAX];
        while !stop.load(Ordering::Relaxed) && limit.is_none_or(|limit| self.began.elapsed() < limit) {
            if self.wait()? && self.starter_has_ended() {
                break;
            }
            self.receive(&mut buffer)?;
            self.send()?;
            self.sample()?;
        }
        // The report first: it is not to be lost with a file.
        let written = self.capture.as_mut().map_or(Ok(()), SwitchCapture::end);
        self.report(matches).and(written)
    }

    /// The pipe of the starter is readable: whether it has ended. What the starter writes means nothing.
    fn starter_has_ended(&mut self) -> bool {
        self.starter.as_mut().is_some_and(|pipe| matches!(pipe.read(&mut [0; 64]), Ok(0)))
    }

    /// Sleeps until a frame comes in or one leaves. True: the pipe of the starter is readable, or has ended.
    fn wait(&self) -> Result<bool, String> {
        let until_event =
            self.switch.next_event().map(|at| Duration::from_nanos(at.saturating_sub(self.now()).div_ceil(1000)));
        let wait = until_event.unwrap_or(WAIT_MAX).min(WAIT_MAX);
        if wait.is_zero() {
            return Ok(false);
        }
        let mut fds: Vec<PollFd<'_>> = self.interfaces.iter().map(|one| PollFd::new(one, PollFlags::IN)).collect();
        fds.extend(self.starter.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                Ok(self.starter.is_some() && fds.last().is_some_and(|pipe| !pipe.revents().is_empty()))
            }
            Err(e) => Err(format!("cannot wait for frames: {e}")),
        }
    }

    /// Takes what waits at the interfaces.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        for port in 0..self.interfaces.len() {
            for _ in 0..FRAMES_PER_TURN {
                let got = self.interfaces[port]
                    .receive(buffer)
                    .map_err(|e| format!("{}: {e}", self.interfaces[port].name))?;
                let Some(bytes) = got else { break };
                let frame = EthernetFrame::new(buffer[..bytes].to_vec());
                let now = self.now();
                if let (Some(capture), Ok(frame)) = (&mut self.capture, &frame) {
                    capture.frame(now, port as u32, false, frame)?;
                }
                self.switch.advance(now, &mut self.out);
                self.switch.receive(now, port as u32, frame);
            }
        }
        Ok(())
    }

    /// Sends what has left the switch.
    fn send(&mut self) -> Result<(), String> {
        let now = self.now();
        self.switch.advance(now, &mut self.out);
        for (port, frame) in self.out.drain(..) {
            if let Some(capture) = &mut self.capture {
                capture.frame(now, port, true, &frame)?;
            }
            let interface = &self.interfaces[port as usize];
            let taken = interface.send(frame.bytes()).map_err(|e| format!("{}: {e}", interface.name))?;
            self.not_sent[port as usize] += u64::from(!taken);
        }
        Ok(())
    }

    /// Writes the queues' lengths, when it is time.
    fn sample(&mut self) -> Result<(), String> {
        let now = self.now();
        let ports = self.interfaces.len() as u32;
        let Some(samples) = self.samples.as_mut().filter(|samples| now >= samples.next) else { return Ok(()) };
        samples.next = now + Samples::EVERY;
        let mut line = format!("{:.3}", now as f64 / PICOSECONDS as f64);
        for port in 0..ports {
            let _ = write!(line, " {}", self.switch.queue(port).0);
        }
        writeln!(samples.file, "{line}").map_err(|e| format!("the samples cannot be written: {e}"))
    }

    /// Prints, or writes, what each port has seen.
    fn report(&mut self, matches: &ArgMatches) -> Result<(), String> {
        let samples = self.samples.as_mut().map_or(Ok(()), |samples| samples.file.flush());
        let samples = samples.map_err(|e| format!("the samples cannot be written: {e}"));
        let seconds = self.began.elapsed().as_secs_f64();
        let (buffer_drops, losses) = self.switch.drops();
        let ports: Vec<serde_json::Value> =
            (0..self.interfaces.len()).map(|port| self.port_json(port, seconds)).collect();
        let results = json!({
            "seconds": seconds, "buffer_drops": buffer_drops, "lost_on_purpose": losses, "ports": ports,
        });
        let path = matches.get_one::<PathBuf>("json");
        match path.map(|path| (path, path.as_os_str() == "-")) {
            Some((_, true)) => println!("{results:#}"),
            Some((path, false)) => {
                std::fs::write(path, format!("{results:#}\n")).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            None => {}
        }
        if !matches.get_flag("quiet") && path.is_none_or(|path| path.as_os_str() != "-") {
            print!("{}", table(&results));
        }
        samples
    }

    fn port_json(&self, port: usize, seconds: f64) -> serde_json::Value {
        let counters = self.switch.counters()[port];
        let (_, queue_max, queue_mean) = self.switch.queue(port as u32);
        json!({
            "interface": self.interfaces[port].name,
            "received": counters.received, "offered": counters.offered, "sent": counters.sent,
            "missing": self.switch.missing(port as u32), "marked": counters.marked,
            "refused": counters.refused, "not_sent": self.not_sent[port],
            "bits_per_second": counters.sent_bytes as f64 * 8.0 / seconds,
            "queue_max": queue_max, "queue_mean": queue_mean,
        })
    }
}

/// The results as text.
fn table(results: &serde_json::Value) -> String {
    let mut text = format!(
        "{:<16} {:>10} {:>10} {:>10} {:>8} {:>8} {:>10} {:>10} {:>10}\n",
        "port", "in", "out", "missing", "share", "marked", "queue", "at most", "Mbit/s"
    );
    for port in results["ports"].as_array().into_iter().flatten() {
        let number = |key: &str| port[key].as_f64().unwrap_or(0.0);
        let share = 100.0 * number("missing") / number("offered").max(1.0);
        let _ = writeln!(
            text,
            "{:<16} {:>10} {:>10} {:>10} {share:>7.2}% {:>8} {:>10.0} {:>10} {:>10.1}",
            port["interface"].as_str().unwrap_or_default(),
            number("received"),
            number("sent"),
            number("missing"),
            number("marked"),
            number("queue_mean"),
            number("queue_max"),
            number("bits_per_second") / 1e6,
        );
    }
    for port in results["ports"].as_array().into_iter().flatten() {
        let interface = port["interface"].as_str().unwrap_or_default();
        if port["refused"] != 0 {
            let _ = writeln!(text, "{interface}: {} frames could not be cut into packets", port["refused"]);
        }
        if port["not_sent"] != 0 {
            let _ = writeln!(
                text,
                "{interface}: the kernel refused {} frames (interface down, or longer than its MTU)",
                port["not_sent"]
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<SwitchSettings, String> {
        let words = ["burst-switch"].iter().chain(words).chain(&["a", "b"]).copied();
        settings(&command().try_get_matches_from(words).expect("a command line"))
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
        let settings =
            read(&["--rate", "300Mbit", "--buffer", "50000", "--ecn", "20KiB:40KiB", "--delay", "1ms", "--loss", "1%"]);
        let settings = settings.expect("read");
        assert_eq!(settings.rate, Some(300_000_000));
        assert_eq!((settings.delay, settings.loss), (1_000_000_000, 0.01));
        assert!(settings.ecn.is_some_and(|(from, to)| to == 2 * from));
        assert_eq!(read(&[]).expect("read").duplicate, 0.0);
    }

    #[test]
    fn wrong_values_are_named() {
        for (words, part) in [
            (&["--rate", "fast"][..], "--rate \"fast\" is not a bit rate"),
            (&["--loss", "200%"], "--loss \"200%\""),
            (&["--loss", "-1%"], "--loss \"-1%\" is not a rate such as 1%"),
            (&["--loss", "5"], "--loss \"5\" is not a rate such as 1%, 300ppm or 0.01: write 5%"),
            (&["--delay", "-1ms"], "--delay \"-1ms\""),
            (&["--for", "0"], "--for 0 would end"),
            (&["--buffer", "100"], "smaller than a packet"),
            (&["--ecn", "40KiB:20KiB"], "ends below"),
            (&["--delay", "soon"], "--delay"),
        ] {
            let sentence = read(words).expect_err("refused");
            assert!(sentence.contains(part), "{sentence}");
        }
    }
}
