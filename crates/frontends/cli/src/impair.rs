//! `burst impair`: a bad network on a port of a running daemon, for a time.

use burst_control::{DeviceInfo, Impairment};
use clap::{Arg, ArgMatches, Command};
use std::process::ExitCode;
use std::time::Duration;

/// How long an impairment lasts without `for=`.
const TIME_DEFAULT: Duration = Duration::from_secs(60);
/// The word that ends an impairment.
const OFF: &str = "off";

/// Words and flags of `burst impair`.
pub fn command() -> Command {
    Command::new("impair")
        .about("Lose, delay, mark or reorder packets of a port for a time, to see how programs fare")
        .long_about(
            "Lose, delay, mark or reorder packets of a port for a time, to see how programs fare.\n\n\
             The options are those of `impair:` in a port's specification: loss, dup, reorder, corrupt, ecn, delay, \
             jitter, rate, queue, kmin, kmax, pmax, seed, dir. The impairment takes the place of an earlier one, ends by \
             itself, and `burst ls` shows it. Each worker has its own random sequence and its own simulated link. Only root \
             and the user who runs the daemon may do this.",
        )
        .after_help("burst impair burst0 loss=1% for=10s\nburst impair eth0 rate=10Gbit kmin=100KiB delay=20us\nburst impair burst0 off")
        .arg(
            Arg::new("port")
                .value_name("PORT")
                .required(true)
                .help("Device (burst0) or its interface (eth0)"),
        )
        .arg(
            Arg::new("options")
                .value_name("OPTION=VALUE")
                .required(true)
                .num_args(1..)
                .help("Options of impair; for=TIME: until when, default 60s; off: the impairment ends now"),
        )
        .arg(crate::socket())
}

/// Runs `burst impair`: the exit code.
pub fn impair(matches: &ArgMatches) -> ExitCode {
    let port = matches.get_one::<String>("port").expect("a required argument");
    let words: Vec<&str> =
        matches.get_many::<String>("options").expect("a required argument").map(String::as_str).collect();
    let done = Change::parse(&words).and_then(|change| {
        let mut daemon = crate::sockets::connect(crate::chosen_socket(matches).as_deref())?;
        let devices = crate::ls::devices(&mut daemon)?;
        let device = find(&devices, port)?;
        daemon.impair(device.index, &change.options, change.time).map_err(|e| e.to_string())?;
        Ok(change.sentence(&device.name))
    });
    done.map_or_else(crate::fail, |text| crate::finish(&text))
}

/// An impairment in force, in a line of `burst ls`.
pub fn as_text(impairment: &Impairment) -> String {
    format!("  impaired: {}, ends in {}\n", impairment.options, seconds(Duration::from_nanos(impairment.left_ns)))
}

/// Rounded up, so that what is in force never ends in 0 s.
fn seconds(time: Duration) -> String {
    burst_grammar::show_duration(Duration::from_secs(time.as_nanos().div_ceil(1_000_000_000) as u64))
}

/// Options and time.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    options: String,
    time: Duration,
}

impl Change {
    fn parse(words: &[&str]) -> Result<Change, String> {
        let all = words.iter().flat_map(|word| word.split(',')).map(str::trim).filter(|word| !word.is_empty());
        let (mut options, mut time) = (Vec::new(), TIME_DEFAULT);
        for word in all {
            match word.strip_prefix("for=") {
                Some(text) => time = burst_grammar::duration(text).map_err(|why| format!("for={text} {why}"))?,
                None => options.push(word),
            }
        }
        match options[..] {
            [] => Err("name an option: burst impair burst0 loss=1% for=10s".into()),
            [OFF] => Ok(Change { options: String::new(), time: Duration::ZERO }),
            _ if time.is_zero() => Err("for=0 is no time: `off` ends an impairment".into()),
            _ => Ok(Change { options: options.join(","), time }),
        }
    }

    fn sentence(&self, device: &str) -> String {
        match self.options.is_empty() {
            true => format!("{device}: no impairment\n"),
            false => format!("{device}: {} for {}\n", self.options, seconds(self.time)),
        }
    }
}

/// The device of that name, or on the interface of that name.
pub fn find<'a>(devices: &'a [DeviceInfo], port: &str) -> Result<&'a DeviceInfo, String> {
    if let Some(device) = devices.iter().find(|device| device.name == port) {
        return Ok(device);
    }
    let on_it: Vec<&DeviceInfo> = devices.iter().filter(|device| device.ifname == port).collect();
    match on_it[..] {
        [device] => Ok(device),
        [] => {
            let names: Vec<String> = devices.iter().map(|d| format!("{} ({})", d.name, d.ifname)).collect();
            Err(format!("there is no port {port}; the daemon has {}", names.join(", ")))
        }
        _ => Err(format!("several devices use the interface {port}: name one by burstN")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_time() {
        let change =
            |options: &str, seconds| Ok(Change { options: options.into(), time: Duration::from_secs(seconds) });
        assert_eq!(Change::parse(&["loss=1%", "for=10s"]), change("loss=1%", 10));
        assert_eq!(Change::parse(&["loss=1%,delay=5us,for=2m"]), change("loss=1%,delay=5us", 120));
        assert_eq!(Change::parse(&["loss=1%"]), change("loss=1%", 60));
        assert_eq!(Change::parse(&["off"]), change("", 0));
        assert!(Change::parse(&["for=10s"]).unwrap_err().contains("name an option"));
        assert!(Change::parse(&["loss=1%", "for=0s"]).unwrap_err().contains("off"));
        assert!(Change::parse(&["loss=1%", "for=ever"]).unwrap_err().contains("is not a duration"));
    }

    #[test]
    fn what_is_in_force_ends_later() {
        let text = as_text(&Impairment { options: "loss=1%".into(), left_ns: 1 });
        assert_eq!(text, "  impaired: loss=1%, ends in 1s\n");
    }
}
