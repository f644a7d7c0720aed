//! The ten exercises.

use crate::exercise::Exercise;
use crate::exercises;

/// The ten exercises, in order.
pub fn all() -> [&'static dyn Exercise; 10] {
    [
        &exercises::PingPong,
        &exercises::RegionKeys,
        &exercises::NotReady,
        &exercises::PathMtu,
        &exercises::Loss,
        &exercises::Incast,
        &exercises::Connect,
        &exercises::Atomics,
        &exercises::SharedReceives,
        &exercises::Congestion,
    ]
}

/// Words that stand where an exercise may stand: those of `burst lab` itself.
pub const COMMANDS: [&str; 7] = ["check", "run", "ladder", "on", "again", "solve", "stop"];

/// The exercise of a name or a number from 1.
///
/// # Errors
/// A sentence with the nearest name.
pub fn find(word: &str) -> Result<&'static dyn Exercise, String> {
    let all = all();
    if let Some(found) = word.parse::<usize>().ok().and_then(|number| all.get(number.wrapping_sub(1))) {
        return Ok(*found);
    }
    if let Some(found) = all.iter().find(|one| one.name() == word) {
        return Ok(*found);
    }
    let names: Vec<&str> = all.iter().map(|one| one.name()).collect();
    let meant = burst_grammar::nearest_within(word, names.iter().copied().chain(COMMANDS), 3);
    let meant = meant.map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"));
    Err(format!("there is no exercise {word:?}{meant}; the exercises are {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exercise::{ChoiceValues, Dice, DrawnTask, Judgement};
    use crate::task::LabTask;
    use std::collections::BTreeSet;

    fn task(exercise: &dyn Exercise, drawn: DrawnTask) -> LabTask {
        LabTask {
            exercise: exercise.name().to_owned(),
            hosts: Vec::new(),
            helpers: Vec::new(),
            settings: drawn.settings,
            wire: drawn.wire,
            runs: Vec::new(),
        }
    }

    #[test]
    fn exercises_are_found_by_name_and_number_and_a_typing_error_is_named() {
        let names: BTreeSet<&str> = all().iter().map(|one| one.name()).collect();
        assert_eq!(names.len(), all().len());
        for (number, one) in all().iter().enumerate() {
            assert_eq!(find(&(number + 1).to_string()).map(|found| found.name()), Ok(one.name()));
            assert_eq!(find(one.name()).map(|found| found.name()), Ok(one.name()));
        }
        let why = |word: &str| find(word).err().unwrap_or_default();
        assert!(
            why("key").contains("did you mean \"keys\"?")
                && why("chcek").contains("did you mean \"check\"?")
                && why("11").contains("pingpong")
                && why("0").contains("no exercise")
        );
    }

    #[test]
    fn the_words_of_the_command_line_are_known() {
        let command = crate::command();
        let words: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(words, COMMANDS.into_iter().collect());
    }

    #[test]
    fn what_is_hidden_differs_from_time_to_time() {
        for one in all() {
            let drawn: BTreeSet<String> = (0..64)
                .map(|_| one.draw(&mut Dice))
                .map(|drawn| format!("{:?}{}", drawn.settings, drawn.wire))
                .collect();
            assert!(drawn.len() > 2, "{}", one.name());
        }
    }

    #[test]
    fn nothing_is_right_before_something_was_measured() {
        for one in all() {
            let task = task(one, one.draw(&mut Dice));
            assert!(!one.is_worth_asking(&task), "{}", one.name());
            for answer in [None, Some("many"), Some("0"), Some("1"), Some("18446744073709551615")] {
                let verdict = one.check(&task, answer);
                assert!(!matches!(verdict, Judgement::Right(_)), "{} {answer:?}: {verdict:?}", one.name());
            }
            assert!(one.question(&task).contains("Question") && one.question(&task).contains("burst lab check"));
        }
    }

    #[test]
    fn questions_fit_a_terminal() {
        let mut long = Vec::new();
        for one in all() {
            let task = task(one, one.draw(&mut Dice));
            let mut text = crate::text::wrapped(&one.question(&task));
            for choice in one.choices() {
                text.push_str(&format!("  {:<28} {}\n", choice.shown(), choice.help));
            }
            long.extend(text.lines().filter(|line| line.chars().count() > 80).map(str::to_owned));
        }
        assert!(long.is_empty(), "{long:#?}");
    }

    #[test]
    fn what_a_learner_may_choose_is_read_and_all_else_refused_with_the_choices() {
        for choice in all().iter().flat_map(|one| one.choices()) {
            let (good, bad) = match choice.values {
                ChoiceValues::Words(words) => (words[0].to_owned(), "nonsense".to_owned()),
                ChoiceValues::Range(low, high) => (low.to_string(), (high + 1).to_string()),
            };
            assert!(choice.read(&bad).is_err_and(|why| why.contains(&choice.shown())));
            assert_eq!(choice.read(&good), Ok(good));
        }
    }
}
