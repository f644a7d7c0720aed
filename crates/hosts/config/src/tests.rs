//! Precedence, ranges, sentences, and the document kept in step (`BLESS=1 cargo test -p burstd` rewrites it).

use super::*;
use std::fmt::Write as _;

fn read(args: &[&str], env: &[(&str, &str)]) -> Result<Config, String> {
    let words = ["burstd"].iter().chain(args);
    let matches = command().try_get_matches_from(words).map_err(|e| e.to_string())?;
    let env: Vec<(String, OsString)> = env.iter().map(|(k, v)| ((*k).to_owned(), OsString::from(v))).collect();
    resolve(&matches, &|name| env.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
}

fn write_file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("burstd-config-{}-{name}.toml", std::process::id()));
    std::fs::write(&path, text).expect("temporary file");
    path
}

#[test]
fn defaults_are_valid() {
    let config = read(&[], &[]).unwrap();
    assert_eq!((config.host.workers, config.host.window_bytes), (1, 1 << 20));
    assert_eq!(config.host.ports, ["udp"]);
    assert_eq!((config.idle_exit, config.ready_fd), (None, None));
    assert_eq!((config.log_level, config.log_format), (LogLevel::Info, LogFormat::Text));
}

#[test]
fn flag_over_variable_over_file_over_default() {
    let path = write_file("precedence", "workers = 2\nwindow = \"64KiB\"\nspin = \"1ms\"\n[log]\nlevel = \"warn\"\n");
    let file = ["--config", path.to_str().unwrap()];
    let only_file = read(&file, &[]).unwrap();
    assert_eq!((only_file.host.workers, only_file.host.window_bytes, only_file.log_level), (2, 65536, LogLevel::Warn));
    let env = [("BURST_WORKERS", "3"), ("BURST_LOG_LEVEL", "debug")];
    let with_env = read(&file, &env).unwrap();
    assert_eq!((with_env.host.workers, with_env.log_level), (3, LogLevel::Debug));
    let with_flag = read(&[file[0], file[1], "--workers", "4"], &env).unwrap();
    assert_eq!((with_flag.host.workers, with_flag.host.spin), (4, Duration::from_millis(1)));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn ports_repeat() {
    let flags = read(&["--port", "udp:dev=a", "--port", "udp:dev=b"], &[("BURST_PORT", "udp:dev=c")]).unwrap();
    assert_eq!(flags.host.ports, ["udp:dev=a", "udp:dev=b"]);
    let words = read(&[], &[("BURST_PORT", "udp:dev=c udp:dev=d")]).unwrap();
    assert_eq!(words.host.ports, ["udp:dev=c", "udp:dev=d"]);
    // A variable without words is not set.
    for blank in ["", " ", "\r\n"] {
        assert_eq!(read(&[], &[("BURST_PORT", blank)]).unwrap().host.ports, ["udp"], "{blank:?}");
    }
}

#[test]
fn a_wrong_value_names_its_source() {
    for (args, env, want) in [
        (&["--workers", "99"][..], &[][..], "--workers: 99 is not between 1 and 16"),
        (&[], &[("BURST_WINDOW", "big")], "BURST_WINDOW: \"big\" is not a size: write 65536, 64KiB, 1MiB or 2GiB"),
        (
            &["--log-level", "inof"],
            &[],
            "--log-level: \"inof\" is none of error, warn, info, debug, trace; the nearest valid one is \"info\"",
        ),
        (
            &["--socket-mode", "999"],
            &[],
            "--socket-mode: \"999\" is not a mode: write octal permission bits such as 0660",
        ),
        (&["--idle-exit", "30"], &[], "--idle-exit: \"30\" is not a duration: write 50us, 5ms, 30s, 2m or 1h"),
        (&["--port", ""], &[], "--port: must not be empty"),
        (&["--urma-lanes", "0"], &[], "--urma-lanes: 0 is not between 1 and 8"),
        (&[], &[("BURST_URMA_LANES", "9")], "BURST_URMA_LANES: 9 is not between 1 and 8"),
    ] {
        assert_eq!(read(args, env).unwrap_err(), want);
    }
}

#[test]
fn a_named_file_must_exist_and_be_right() {
    assert!(read(&["--config", "/nonexistent/x.toml"], &[]).unwrap_err().starts_with("/nonexistent/x.toml: "));
    let path = write_file("wrong", "wrokers = 1\n");
    let why = read(&["--config", path.to_str().unwrap()], &[]).unwrap_err();
    assert!(why.ends_with("unknown key \"wrokers\"; the nearest valid one is \"workers\""), "{why}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_removed_setting_is_refused_with_the_reason() {
    let read_all = |args: &[&str], env: &[(&str, &str)]| {
        let words = ["burstd"].iter().chain(args).map(OsString::from);
        let env = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        match read_from(words, &env).expect_err("it was removed") {
            ArgsRefusal::Wrong(sentence) => sentence,
            other => panic!("{other:?}"),
        }
    };
    let pause = "was removed in November 2026, because the longest pause is always 10 s";
    assert_eq!(read_all(&["--restart-pause", "0"], &[]), format!("burstd: --restart-pause: {pause}"));
    assert_eq!(read_all(&["--restart-pause=0"], &[]), format!("burstd: --restart-pause: {pause}"));
    let variable = format!("BURST_{}", "restart_pause".to_uppercase());
    assert_eq!(read_all(&[], &[(&variable, "1s")]), format!("burstd: {variable}: {pause}"));
    let path = write_file("removed", "restart_pause = \"0\"\n");
    let why = read_all(&["--config", path.to_str().unwrap()], &[]);
    assert!(why.ends_with(&format!(": restart_pause: {pause}")), "{why}");
    std::fs::remove_file(path).unwrap();
    let irn = "\"irn\" was removed in November 2026, because only `burst sim` compares with IRN";
    assert_eq!(read_all(&["--rto", "irn"], &[]), format!("burstd: --rto: {irn}"));
}

#[test]
fn every_key_is_whole() {
    command().debug_assert();
    for key in KEYS {
        assert!(key.default.is_empty() || key.kind.read(key.default).is_ok(), "{}", key.name);
        let derived = key.name.replace(['.', '_'], "-");
        assert_eq!(key.flag, derived, "the flag follows the name");
        assert_eq!(key.env, format!("BURST_{}", derived.replace('-', "_").to_uppercase()), "so does the variable");
    }
}

/// A value of each key that differs from its default.
fn other_value(id: KeyId) -> &'static str {
    match id {
        KeyId::Socket => "/tmp/other.sock",
        KeyId::SocketMode => "0600",
        KeyId::Port => "udp:dev=other",
        KeyId::Workers => "3",
        KeyId::Spin => "7us",
        KeyId::Window => "3MiB",
        KeyId::Cc => "swift:beta=0.5",
        KeyId::CcStandard | KeyId::CcLoopback => "none",
        KeyId::CcBurst => "dctcp",
        KeyId::SelectiveRepeat => "no",
        KeyId::Rto => "dedicated",
        KeyId::UrmaLanes => "4",
        KeyId::UrmaCaqm => "yes",
        KeyId::UrmaHold => "no",
        KeyId::Gpu => "on",
        KeyId::PacketRing => "on",
        KeyId::IdleExit => "9s",
        KeyId::ReadyFd => "5",
        KeyId::EndWithFd => "6",
        KeyId::UserShare => "33",
        KeyId::UserReserve => "4",
        KeyId::AccountBy => "cgroup",
        KeyId::AccountDepth => "3",
        KeyId::SubuidFile => "/dev/null",
        KeyId::Lend => "same-user",
        KeyId::Guarded => "yes",
        KeyId::StateDir => "/tmp/other-state",
        KeyId::Metrics => "127.0.0.1:9317",
        KeyId::LogLevel => "trace",
        KeyId::LogFormat => "json",
    }
}

#[test]
fn yes_and_on_are_the_same_for_every_key_of_that_kind() {
    let switches: Vec<_> = KEYS.iter().filter(|key| matches!(key.kind, ValueKind::Switch)).collect();
    assert!(!switches.is_empty());
    for key in switches {
        let config = |word: &str| read(&[&format!("--{}={word}", key.flag)], &[]).unwrap();
        assert!(["yes", "true", "1"].iter().all(|word| config(word) == config("on")), "{}", key.name);
        assert!(["no", "false", "0"].iter().all(|word| config(word) == config("off")), "{}", key.name);
        assert_ne!(config("on"), config("off"), "{}", key.name);
        assert_eq!(read(&[], &[(key.env, "off")]).unwrap(), config("off"));
    }
    assert_eq!(read(&["--lend=no"], &[]).unwrap(), read(&["--lend=off"], &[]).unwrap());
    assert!(read(&["--guarded=maybe"], &[]).unwrap_err().contains("neither on nor off"));
}

#[test]
fn every_key_changes_the_configuration() {
    let defaults = read(&[], &[]).unwrap();
    for key in KEYS {
        let flag = format!("--{}={}", key.flag, other_value(key.id));
        assert_ne!(read(&[&flag], &[]).unwrap(), defaults, "{} is read but not used", key.name);
    }
}

#[test]
fn the_congestion_controller_is_read_with_its_parameters_and_refused_with_the_nearest_name() {
    assert_eq!(read(&[], &[]).unwrap().host.cc.to_string(), "auto");
    let kinds = read(&["--cc", "dctcp", "--cc-standard", "auto"], &[]).unwrap().host.cc;
    assert_eq!(kinds.to_string(), "standard auto, burst dctcp, loopback dctcp");
    let chosen = read(&["--cc", "dcqcn:rpg_time_reset=60"], &[]).unwrap();
    assert_eq!(chosen.host.cc.to_string(), "dcqcn:rpg_time_reset=60us");
    let sentence = read(&["--cc", "dcqcn:rpg_time=60"], &[]).unwrap_err();
    assert!(sentence.contains("--cc: dcqcn has no parameter 'rpg_time'; did you mean 'rpg_time_reset'?"), "{sentence}");
    let sentence = read(&[], &[("BURST_CC", "swfit")]).unwrap_err();
    assert!(sentence.contains("BURST_CC") && sentence.contains("did you mean 'swift'?"), "{sentence}");
}

#[test]
fn a_kind_of_peers_has_its_own_congestion_control() {
    use burst_cc::{ChoiceRank, PeerKind};
    let of_kinds = |args: &[&str]| {
        let cc = read(args, &[]).unwrap().host.cc;
        PeerKind::ALL.map(|kind| (cc.of(kind).params.to_string(), cc.of(kind).rank))
    };
    let (default, chosen) = (ChoiceRank::Default, ChoiceRank::Configured);
    let named = |names: [&str; 3], ranks: [ChoiceRank; 3]| [0, 1, 2].map(|at| (names[at].to_owned(), ranks[at]));
    assert_eq!(of_kinds(&[]), named(["cubic"; 3], [default; 3]));
    assert_eq!(of_kinds(&["--cc", "swift"]), named(["swift"; 3], [chosen; 3]));
    assert_eq!(
        of_kinds(&["--cc", "swift", "--cc-standard", "dcqcn", "--cc-loopback", "none"]),
        named(["dcqcn", "swift", "none"], [chosen; 3])
    );
    assert_eq!(
        of_kinds(&["--cc-burst", "dctcp:g=0.5"]),
        named(["cubic", "dctcp:g=0.5", "cubic"], [default, chosen, default])
    );
    let sentence = read(&["--cc-burst", "dctpc"], &[]).unwrap_err();
    assert!(sentence.contains("--cc-burst") && sentence.contains("did you mean 'dctcp'?"), "{sentence}");
}

#[test]
fn a_window_under_the_smallest_is_raised_and_reported() {
    let small = read(&["--window", "16KiB"], &[]).unwrap();
    assert_eq!((small.host.window_bytes, small.host.window_in_force()), (16 << 10, 64 << 10));
    let sentence = small.raised_window().expect("a sentence");
    assert_eq!(sentence, "window: 16KiB is raised to 64KiB, the smallest window of a peer address");
    let large = read(&["--window", "64KiB"], &[]).unwrap();
    assert_eq!((large.host.window_in_force(), large.raised_window()), (64 << 10, None));
}

#[test]
fn document_is_in_step() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/configuration.md");
    let want = document();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &want).expect("write docs/configuration.md");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == want, "docs/configuration.md is stale: run BLESS=1 cargo test -p burst-config");
}

fn document() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         This page is written from the tables in `crates/hosts/config/src/keys.rs` and `crates/hosts/config/src/environment.rs`\n\
         by `BLESS=1 cargo test -p burst-config`.\n\n\
         * [Keys of burstd](#keys-of-burstd)\n\
         * [Variables of libraries and commands](#variables-of-libraries-and-commands)\n\
         * [Ports](#ports)\n\
         * [Congestion control](#congestion-control)\n\n\
         ## Keys of burstd\n\n\
         A key can be given as a flag, as an environment variable, or in a TOML file; a flag wins over a variable, a\n\
         variable over the file, the file over the default. The file is the one named by `--config`, else\n\
         `$XDG_CONFIG_HOME/burst/burstd.toml` (`~/.config/burst/burstd.toml`), else `/etc/burst/burstd.toml`, if there.\n\
         A wrong flag, key or value is refused in one sentence with exit code 2.\n\n\
         | key in the file | flag | variable | type and range | default | what it does |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for key in KEYS {
        let kind = if key.many { format!("{}, repeatable", key.kind.describe()) } else { key.kind.describe() };
        let default = if key.default.is_empty() { "see text".to_owned() } else { format!("`{}`", key.default) };
        let (name, flag, env, help) = (key.name, key.flag, key.env, key.help);
        writeln!(text, "| `{name}` | `--{flag}` | `{env}` | {kind} | {default} | {help} |").expect("a string grows");
    }
    text.push_str(
        "\nA file that sets some of them:\n\n```toml\nport = [\"udp:dev=eth0\", \"udp:dev=eth1\"]\nworkers = 2\n\
         window = \"2MiB\"\n\n[log]\nlevel = \"warn\"\nformat = \"json\"\n```\n\n\
         In `BURST_PORT`, several ports are separated by spaces. Where `on` and `off` are the values of a key, a variable or an option of\n\
         a port, `yes`, `true` and `1`, and `no`, `false` and `0`, mean the same.\n",
    );
    variables(&mut text);
    text.push_str(
        "\n## Ports\n\n\
         A port is a kind with options, `KIND:KEY=VALUE,KEY=VALUE`: `udp`, `packet` or `dpdk`. Before it may stand wrappers\n\
         `impair:…/`, which make the network worse for tests: `impair:loss=1%,delay=200us/udp:dev=eth0`.\n",
    );
    options_of("udp", burst_port::spec::UDP_OPTIONS, &mut text);
    options_of("packet", burst_port::spec::PACKET_OPTIONS, &mut text);
    options_of("dpdk", burst_port::spec::DPDK_OPTIONS, &mut text);
    options_of("impair", burst_port::spec::IMPAIR_OPTIONS, &mut text);
    controllers(&mut text);
    text.push_str("\nA `RATE` is `1%`, `300ppm` or `0.01`; a `TIME` `100us` or `5ms`; a `SIZE` `512K` or `4M`.\n");
    text
}

fn variables(text: &mut String) {
    text.push_str(
        "\n## Variables of libraries and commands\n\n\
         These are no keys: a program, or a command, reads them.\n\n\
         | variable | read by | values | what it does |\n| --- | --- | --- | --- |\n",
    );
    for variable in crate::environment::VARIABLES {
        let crate::environment::ProgramVariable { name, reader, values, help } = variable;
        writeln!(text, "| `{name}` | {reader} | {values} | {help} |").expect("a string grows");
    }
    text.push_str(
        "\nBurst also reads `XDG_RUNTIME_DIR`, `XDG_CONFIG_HOME`, `XDG_STATE_HOME` and `HOME` (places of files), `STATE_DIRECTORY`,\n\
         `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `LISTEN_FDS` and `LISTEN_PID` (systemd), `LD_LIBRARY_PATH` and `PATH` (`burst run`).\n\
         Variables of tests and scripts: CONTRIBUTING.md.\n",
    );
}

fn controllers(text: &mut String) {
    text.push_str(
        "\n## Congestion control\n\n\
         `cc` is the name of an algorithm, or `NAME:PARAMETER=VALUE,PARAMETER=VALUE`. A time without a unit is in microseconds, a bit\n\
         rate without one in Mbit/s (`40`, `40M`, `2.5G`); a fraction is `0.8` or `80%`. docs/congestion.md says how to choose.\n\n\
         | algorithm | what it does |\n| --- | --- |\n",
    );
    for algorithm in burst_cc::Algorithm::ALL {
        writeln!(text, "| `{algorithm}` | {} |", algorithm.help()).expect("a string grows");
    }
    for algorithm in burst_cc::Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.parameters().is_empty()) {
        writeln!(text, "\n| parameter of `{algorithm}` | range | default | what it does |\n| --- | --- | --- | --- |")
            .expect("a string grows");
        for row in algorithm.parameters() {
            let [min, max, default] = [row.min, row.max, row.default].map(|value| row.show(value));
            writeln!(text, "| `{}` | {min} to {max} | `{default}` | {} |", row.name, row.help).expect("a string grows");
        }
    }
}

fn options_of<S>(kind: &str, table: &[burst_port::spec::OptionRow<S>], text: &mut String) {
    writeln!(text, "\n| option of `{kind}` | what it does |\n| --- | --- |").expect("a string grows");
    for row in table {
        let value = row.value.replace('|', "\\|");
        writeln!(text, "| `{}={value}` | {} |", row.key, row.help).expect("a string grows");
    }
}
