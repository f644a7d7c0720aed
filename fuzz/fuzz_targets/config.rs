//! Any TOML file, command line and environment of burstd: nothing panics, a refusal is one sentence with the program's name, and
//! what is accepted lies within the ranges of the table.
//!
//! The input is lines: those up to the first empty one are the file's, then each line is a flag, or a variable if it begins with
//! `BURST_`.
#![no_main]

use burst_args::ArgsRefusal;
use burst_config::{self as config, Config};
use libfuzzer_sys::fuzz_target;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// The configuration file, in memory.
fn file() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| {
        let fd: OwnedFd = rustix::fs::memfd_create("burstd.toml", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        fd.into()
    })
}

fn check(config: &Config) {
    assert!((1..=16).contains(&config.host.workers) && config.socket_mode <= 0o777, "{config:?}");
    assert!(config.host.policy.share_percent <= 100 && config.host.policy.reserve_percent <= 100, "{config:?}");
    assert!(!config.host.ports.is_empty() && config.host.ports.iter().all(|p| !p.is_empty()), "{config:?}");
    assert!(config.host.window_in_force() >= config.host.window_bytes, "{config:?}");
    if let Some(sentence) = config.raised_window() {
        assert!(!sentence.is_empty());
    }
}

fuzz_target!(|data: &[u8]| {
    let split = data.windows(2).position(|two| two == b"\n\n").unwrap_or(data.len());
    let (text, rest) = data.split_at(split);
    file().set_len(0).expect("cut");
    file().write_all_at(text, 0).expect("written");
    let words: Vec<&[u8]> = rest.split(|b| *b == b'\n').filter(|w| !w.is_empty() && !w.contains(&0)).collect();
    let (variables, flags): (Vec<&[u8]>, Vec<&[u8]>) = words.into_iter().partition(|w| w.starts_with(b"BURST_"));
    let env = |name: &str| {
        let mut pairs = variables.iter().filter_map(|v| v.split_at_checked(v.iter().position(|b| *b == b'=')?));
        pairs.find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| OsStr::from_bytes(&value[1..]).to_owned())
    };
    let named = format!("--config=/proc/self/fd/{}", file().as_raw_fd());
    let line = [OsString::from("burstd"), named.into()];
    let line = line.into_iter().chain(flags.iter().map(|f| OsStr::from_bytes(f).to_owned()));
    match config::read_from(line, &env) {
        Ok(config) => check(&config),
        Err(ArgsRefusal::Wrong(sentence)) => assert!(sentence.starts_with("burstd: ") && sentence.len() > 10),
        Err(ArgsRefusal::Shown(text)) => assert!(!text.render().to_string().is_empty()),
    }
});
