//! `burst top`: ports, workers and queue pairs of the daemon and of programs with engines of their own, anew in each interval.
//!
//! [`model`] makes rates of two reports, [`screen`] draws them in 80 columns or more, this file has keys and terminal. All that a
//! screen shows comes from reports as `burst metrics` gets them: what a user may not see is not there.

mod model;
mod screen;

use clap::{Arg, ArgMatches, Command};
use model::{SortBy, TopModel};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::ScreenState;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Words and flags of `burst top`.
pub fn command() -> Command {
    Command::new("top")
        .about("Watch ports, workers and queue pairs on the terminal")
        .long_about(
            "Watch ports, workers and queue pairs on the terminal.\n\n\
             Keys: q ends, s sorts by the next column, / filters by program, peer or number, space freezes, up and down select a \
             queue pair, enter shows it, escape goes back. NO_COLOR is obeyed.",
        )
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("TIME")
                .default_value("1s")
                .value_parser(crate::stats::read_interval)
                .help("Time between two looks"),
        )
        .arg(Arg::new("filter").long("filter").value_name("TEXT").help("Show queue pairs with this text only"))
        .arg(crate::socket())
}

/// Runs `burst top`: the exit code.
pub fn top(matches: &ArgMatches) -> ExitCode {
    if !std::io::stdout().is_terminal() {
        return crate::fail("top draws on a terminal; burst stats --watch writes to a pipe");
    }
    let socket = crate::chosen_socket(matches);
    let ask = move || crate::metrics::reports(socket.as_deref());
    let interval = matches.get_one::<Duration>("interval").copied().unwrap_or(Duration::from_secs(1));
    // Before the terminal changes, so that the sentence is read.
    let first = match ask() {
        Ok(reports) => reports,
        Err(sentence) => return crate::fail(sentence),
    };
    let colored = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut state = ScreenState::new(colored, matches.get_one::<String>("filter").cloned().unwrap_or_default());
    let mut model = TopModel::default();
    model.update(first, Instant::now());
    let mut terminal = ratatui::init();
    let ended = watch(&mut terminal, &mut model, &mut state, interval, ask);
    ratatui::restore();
    ended.map_or_else(crate::fail, |()| ExitCode::SUCCESS)
}

type Ask<'a> = &'a mut dyn FnMut() -> Result<Vec<burst_metrics::exposition::EngineReport>, String>;

/// Draws and reads keys until the user ends it.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    model: &mut TopModel,
    state: &mut ScreenState,
    interval: Duration,
    mut ask: impl FnMut() -> Result<Vec<burst_metrics::exposition::EngineReport>, String>,
) -> Result<(), String> {
    let ask: Ask<'_> = &mut ask;
    let say = |e: std::io::Error| format!("the terminal fails: {e}");
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen::draw(frame, model, state)).map_err(say)?;
        if event::poll(next.saturating_duration_since(Instant::now())).map_err(say)? {
            if let Event::Key(key) = event::read().map_err(say)?
                && key.kind == KeyEventKind::Press
                && on_key(state, key)
            {
                return Ok(());
            }
            continue;
        }
        next = Instant::now() + interval;
        if state.is_frozen {
            continue;
        }
        match ask() {
            Ok(reports) => {
                model.update(reports, Instant::now());
                state.trouble.clear();
            }
            Err(sentence) => state.trouble = sentence,
        }
    }
}

/// Changes what is shown. Returns whether the user ends the program.
fn on_key(state: &mut ScreenState, key: KeyEvent) -> bool {
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return true;
    }
    if state.is_typing {
        type_filter(state, key.code);
        return false;
    }
    match key.code {
        KeyCode::Char('q') => return true,
        KeyCode::Char('s') => state.sort = SortBy::next(state.sort),
        KeyCode::Char('/') => state.is_typing = true,
        KeyCode::Char(' ') => state.is_frozen = !state.is_frozen,
        KeyCode::Down => state.selected = state.selected.saturating_add(1),
        KeyCode::Up => state.selected = state.selected.saturating_sub(1),
        KeyCode::Enter => state.is_detailed = true,
        KeyCode::Esc => state.is_detailed = false,
        _ => {}
    }
    false
}

/// Changes the filter.
fn type_filter(state: &mut ScreenState, code: KeyCode) {
    match code {
        KeyCode::Char(letter) => state.filter.push(letter),
        KeyCode::Backspace => _ = state.filter.pop(),
        KeyCode::Enter => state.is_typing = false,
        KeyCode::Esc => (state.is_typing, state.filter) = (false, String::new()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_what_is_shown() {
        let mut state = ScreenState::new(false, String::new());
        let mut press = |code| on_key(&mut state, KeyEvent::new(code, KeyModifiers::NONE));
        for code in [KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Char('x'), KeyCode::Backspace, KeyCode::Enter] {
            assert!(!press(code), "{code:?}");
        }
        for code in [KeyCode::Char('s'), KeyCode::Char(' '), KeyCode::Down, KeyCode::Down, KeyCode::Up, KeyCode::Enter]
        {
            assert!(!press(code), "{code:?}");
        }
        assert!(press(KeyCode::Char('q')));
        assert_eq!((state.filter.as_str(), state.selected, state.is_frozen, state.is_detailed), ("q", 1, true, true));
        assert_eq!(state.sort, SortBy::next(SortBy::Packets));
        assert!(on_key(&mut state, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
