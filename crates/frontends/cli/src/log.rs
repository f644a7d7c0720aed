//! `burst log`: the levels of a running daemon's log, shown and changed.

use burst_control::monitor::LogState;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// Words and flags of `burst log`.
pub fn command() -> Command {
    Command::new("log")
        .about("Show the levels of the daemon's log, or change them")
        .long_about(
            "Show the level of each target of the daemon's log, or change it.\n\n\
             A target is a part of the daemon. Levels are error, warn, info, debug and trace; a level without a target is for \
             all of them, and `default` is the level of the configuration. A change is in force until the daemon ends. Only \
             root and the user who runs the daemon may change levels. Of one message at most 512 lines are written in a \
             minute, and of all lines at level debug and trace 20000; the log says how many were left out.",
        )
        .after_help("burst log\nburst log debug\nburst log host=debug port=warn\nburst log default")
        .arg(
            Arg::new("levels")
                .value_name("LEVEL|TARGET=LEVEL")
                .num_args(0..)
                .help("A level for all targets, or for one; in the order of the words"),
        )
        .arg(crate::socket())
        .arg(crate::json())
}

/// Runs `burst log`: the exit code.
pub fn log(matches: &ArgMatches) -> ExitCode {
    let words: Vec<&str> = matches.get_many::<String>("levels").unwrap_or_default().map(String::as_str).collect();
    let levels = (!words.is_empty()).then(|| words.join(" "));
    let shown = crate::sockets::connect(crate::chosen_socket(matches).as_deref())
        .and_then(|mut daemon| daemon.log(levels.as_deref()).map_err(|e| e.to_string()));
    let text = |state: LogState| if matches.get_flag("json") { as_json(&state) } else { as_text(&state) };
    shown.map(text).map_or_else(crate::fail, |text| crate::finish(&text))
}

fn as_text(state: &LogState) -> String {
    let mut text = String::new();
    for target in &state.targets {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<8} {:<6} {}", target.name, target.level, target.about);
    }
    if state.left_out > 0 {
        let _ = writeln!(text, "{} lines were left out since the start: their messages came too often", state.left_out);
    }
    text
}

fn as_json(state: &LogState) -> String {
    let targets = state.targets.iter().map(|target| (target.name.clone(), json!(target.level)));
    let levels: serde_json::Map<String, Value> = targets.collect();
    crate::json_text(&json!({ "levels": levels, "lines_left_out": state.left_out }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::monitor::LogTargetLevel;

    #[test]
    fn levels_as_text_and_json() {
        let target =
            |name: &str, level: &str| LogTargetLevel { name: name.into(), level: level.into(), about: "all".into() };
        let mut state = LogState { targets: vec![target("host", "debug"), target("port", "info")], left_out: 0 };
        assert_eq!(as_text(&state), "host     debug  all\nport     info   all\n");
        state.left_out = 7;
        assert!(as_text(&state).ends_with("7 lines were left out since the start: their messages came too often\n"));
        let value: Value = serde_json::from_str(&as_json(&state)).expect("JSON");
        assert_eq!(value, json!({ "levels": { "host": "debug", "port": "info" }, "lines_left_out": 7 }));
    }
}
