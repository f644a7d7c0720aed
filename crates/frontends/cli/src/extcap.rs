//! `burst` as an extcap program: Wireshark lists the daemon's ports among its interfaces and captures there.
//!
//! Wireshark runs what lies in its extcap folder with `--extcap-interfaces`, then for an interface with `--extcap-dlts`,
//! `--extcap-config` and `--capture --fifo FILE` (Wireshark's doc/extcap.4). What lies there is a link to `burst`; the packages
//! have it. The capture is `burst capture -w FIFO`; it ends when Wireshark closes the FIFO or sends SIGTERM.

use crate::capture;
use burst_args::ArgsRefusal;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

/// The interface that stands for all ports.
const ALL_PORTS: &str = "burst";
/// What Wireshark calls the link layer of IP packets without one: LINKTYPE_RAW.
const RAW: &str = "dlt {number=101}{name=RAW}{display=IP}\n";

/// Options of `burst capture` that Wireshark's dialogue offers: name, text, and type with its bounds.
const OPTIONS: &[(&str, &str, &str)] = &[
    ("snap", "Bytes of each packet behind the UDP header (empty: all)", "{type=unsigned}{range=0,65535}"),
    ("qp", "Queue pair number, as 0x11f (empty: all)", "{type=string}"),
    ("peer", "Address of the peer (empty: all)", "{type=string}"),
    ("opcode", "Part of the opcode's name, as send (empty: all)", "{type=string}"),
    ("stage", "Stages: sent, received, dropped, refused (empty: all)", "{type=string}"),
    ("socket", "Control socket of the daemon (empty: the usual places)", "{type=string}"),
];

/// Answers Wireshark, if this is a call of its; the exit code.
pub fn extcap() -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().collect();
    let is_wiresharks = |arg: &OsString| arg.to_str().is_some_and(|arg| arg.starts_with("--extcap-"));
    args.get(1).filter(|arg| is_wiresharks(arg) || *arg == "--capture")?;
    let answered = match burst_args::check(command(), args) {
        Ok(matches) => answer(&matches),
        Err(ArgsRefusal::Wrong(sentence)) => Err(sentence),
        Err(_) => Err("not a call of Wireshark".into()),
    };
    Some(match answered {
        Ok(code) => code,
        Err(sentence) => crate::fail(sentence),
    })
}

fn command() -> Command {
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let value = |name: &'static str| Arg::new(name).long(name);
    Command::new("burst")
        .args(["extcap-interfaces", "extcap-dlts", "extcap-config", "capture"].map(flag))
        .args(
            ["extcap-version", "extcap-interface", "extcap-capture-filter", "extcap-reload-option", "fifo"].map(value),
        )
        .args(OPTIONS.iter().map(|(name, ..)| value(name)))
}

fn answer(matches: &ArgMatches) -> Result<ExitCode, String> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str).filter(|text| !text.is_empty());
    if matches.get_flag("capture") {
        let fifo = text("fifo").ok_or("a capture for Wireshark needs --fifo FILE")?;
        return run_capture(text("extcap-interface").unwrap_or(ALL_PORTS), fifo, text);
    }
    let answer = if matches.get_flag("extcap-config") {
        configuration()
    } else if matches.get_flag("extcap-dlts") {
        RAW.into()
    } else {
        interfaces()
    };
    Ok(crate::finish(&answer))
}

/// All ports together, and each port of the daemon, if one answers.
fn interfaces() -> String {
    let mut text = format!(
        "extcap {{version={}}}{{help=file:///usr/share/doc/burst/running.md}}{{display=Burst}}\n\
         interface {{value={ALL_PORTS}}}{{display=Burst: all ports}}\n",
        env!("CARGO_PKG_VERSION")
    );
    let daemon = crate::sockets::connect(None);
    let devices = daemon.and_then(|mut daemon| crate::ls::devices(&mut daemon)).unwrap_or_default();
    for device in devices {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "interface {{value={}}}{{display=Burst: {}}}", device.name, device.ifname);
    }
    text
}

fn configuration() -> String {
    let mut text = String::new();
    for (number, (name, help, kind)) in OPTIONS.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "arg {{number={number}}}{{call=--{name}}}{{display={help}}}{kind}");
    }
    text
}

/// Runs `burst capture` with what the dialogue says.
fn run_capture<'a>(interface: &str, fifo: &str, text: impl Fn(&str) -> Option<&'a str>) -> Result<ExitCode, String> {
    let mut words = vec!["capture".to_owned(), "-w".into(), fifo.into()];
    if interface != ALL_PORTS {
        words.push(interface.into());
    }
    for (name, ..) in OPTIONS {
        words.extend(text(name).map(|value| format!("--{name}={value}")));
    }
    match burst_args::check(capture::command(), words.into_iter().map(OsString::from)) {
        Ok(matches) => Ok(capture::capture(&matches)),
        Err(ArgsRefusal::Wrong(sentence)) => Err(sentence),
        Err(_) => Err("the options of the capture are wrong".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_those_of_a_capture() {
        command().debug_assert();
        let capture = capture::command();
        for (name, ..) in OPTIONS {
            assert!(capture.get_arguments().any(|arg| arg.get_long() == Some(name)), "{name}");
        }
        assert_eq!(configuration().lines().count(), OPTIONS.len());
        assert!(configuration().contains("arg {number=1}{call=--qp}"));
    }
}
