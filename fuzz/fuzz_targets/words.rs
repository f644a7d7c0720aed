//! What a person writes: sizes, durations, rates, port specifications, addresses, names of files, the command line of `burst`.
//! Nothing panics, a value that was printed is read the same again, and a refusal has a sentence.
#![no_main]

use burst_args::ArgsRefusal;
use burst_control::names::{FILE_NAME_MAX, is_file_name};
use burst_port::PortSpec;
use burst_port::lan::Prefix;
use burst_port::spec::DevArgs;
use libfuzzer_sys::fuzz_target;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

fn quantities(text: &str) {
    if let Ok(value) = burst_grammar::bytes(text) {
        assert_eq!(burst_grammar::bytes(&burst_grammar::show_bytes(value)), Ok(value));
    }
    if let Ok(value) = burst_grammar::duration(text) {
        assert_eq!(burst_grammar::duration(&burst_grammar::show_duration(value)), Ok(value));
    }
    if let Ok(ppm) = burst_grammar::parts_per_million(text) {
        assert!(ppm <= 1_000_000);
    }
    let words = ["socket", "port", "workers", "log.level"];
    assert!(words.contains(&burst_grammar::nearest(text, words).expect("one is nearest")));
    assert!(burst_grammar::nearest_within(text, words, 1).is_none_or(|near| words.contains(&near)));
}

fn places(text: &str) {
    match PortSpec::parse(text) {
        Ok(spec) => assert_eq!(PortSpec::parse(&spec.to_string()).expect("the same again"), spec),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(prefix) = text.parse::<Prefix>() {
        assert!(prefix.contains(prefix.ip) && prefix.len <= if prefix.ip.is_ipv4() { 32 } else { 128 });
        assert!(!prefix.contains("ff02::1".parse().expect("an address")) || prefix.ip.is_ipv6());
    }
    let _ = DevArgs::parse(text);
    if is_file_name(text) {
        assert!(text.len() <= FILE_NAME_MAX && std::path::Path::new(text).components().count() == 1);
        assert_eq!(std::path::Path::new("/x").join(text).parent(), Some(std::path::Path::new("/x")));
    }
}

fn command_line(bytes: &[u8]) {
    let words = bytes.split(|b| *b == b'\n').filter(|w| !w.contains(&0)).take(16);
    let line = [OsString::from("burst")].into_iter().chain(words.map(|w| OsStr::from_bytes(w).to_owned()));
    match burst_args::check(burst_cli::command(), line) {
        Ok(matches) => assert!(matches.subcommand_name().is_some(), "a command is required"),
        Err(ArgsRefusal::Wrong(sentence)) => assert!(sentence.starts_with("burst: ") && sentence.len() > 10),
        Err(ArgsRefusal::Shown(text)) => assert!(!text.render().to_string().is_empty()),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match (kind % 4, std::str::from_utf8(rest)) {
        (0, Ok(text)) => quantities(text),
        (1 | 2, Ok(text)) => places(text),
        _ => command_line(rest),
    }
});
