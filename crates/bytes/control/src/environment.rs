//! Environment variables of programs that take one of some words: which words there are, and a sentence for another one.
//!
//! A library cannot refuse to be loaded, so a word that means nothing leaves the variable without effect. The sentence, which
//! the library prints once, says so.

use crate::in_process::{DAEMON_MODE, IN_PROCESS_MODE, LENT_MODE, MODE_ENV};
use burst_grammar::{nearest, switch};
use std::ffi::OsString;

/// A variable with a list of words.
#[derive(Debug)]
pub struct WordVariable {
    /// Its name.
    pub name: &'static str,
    /// Its words. If `on` or `off` is one, the other words for yes and no ([`burst_grammar::switch`]) mean the same.
    pub words: &'static [&'static str],
}

/// All of them that libraries read. Those that are keys of the daemon (`BURST_CC`, `BURST_RTO`) are refused where the
/// configuration is read.
pub const WORD_VARIABLES: &[WordVariable] = &[
    WordVariable { name: MODE_ENV, words: &[DAEMON_MODE, IN_PROCESS_MODE, LENT_MODE] },
    WordVariable { name: "BURST_REGISTER", words: &["shared"] },
    WordVariable { name: "BURST_SWAP", words: &["on", "off"] },
    WordVariable { name: "BURST_KEEPER", words: &["on", "off"] },
    WordVariable { name: "BURST_EXPLAIN", words: &["on", "off"] },
    WordVariable { name: "BURST_QUIET", words: &["on", "off"] },
];

impl WordVariable {
    /// The sentence about a value that is none of the words; `None` for one that is, and for an empty one.
    fn complaint(&self, value: &str) -> Option<String> {
        let is_switch = self.words.contains(&"off") && switch(value).is_some();
        if value.is_empty() || is_switch || self.words.contains(&value) {
            return None;
        }
        let near = nearest(&value.to_ascii_lowercase(), self.words.iter().copied())?;
        let all = self.words.join(", ");
        Some(format!("{}={value:?} has no effect: the nearest valid word is {near:?}, and there are {all}", self.name))
    }
}

/// A sentence for each variable whose value is no word of it. `value_of` reads the environment.
pub fn misspelt(value_of: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
    let complaint = |variable: &WordVariable| variable.complaint(&value_of(variable.name)?.to_string_lossy());
    WORD_VARIABLES.iter().filter_map(complaint).collect()
}

/// Whether a variable of this process is `off`, or another word for no.
pub fn is_switched_off(name: &str) -> bool {
    std::env::var_os(name).as_ref().and_then(|word| word.to_str()).and_then(switch) == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_answered_with_the_nearest() {
        for (name, value, near) in [
            ("BURST_MODE", "inproces", "inprocess"),
            ("BURST_MODE", "Lent", "lent"),
            ("BURST_REGISTER", "share", "shared"),
            ("BURST_SWAP", "of", "off"),
            ("BURST_KEEPER", "offf", "off"),
            ("BURST_EXPLAIN", "onn", "on"),
            ("BURST_QUIET", "offf", "off"),
        ] {
            let sentences = misspelt(|asked| (asked == name).then(|| value.into()));
            assert_eq!(sentences.len(), 1, "{name}={value}");
            let (part, near) = (format!("{name}={value:?}"), format!("is {near:?},"));
            assert!(sentences[0].contains(&part) && sentences[0].contains(&near), "{}", sentences[0]);
        }
    }

    #[test]
    fn words_and_their_synonyms_are_accepted() {
        for variable in WORD_VARIABLES {
            assert!(variable.words.iter().chain(&[""]).all(|word| variable.complaint(word).is_none()), "{variable:?}");
        }
        for name in ["BURST_SWAP", "BURST_KEEPER", "BURST_EXPLAIN", "BURST_QUIET"] {
            for word in ["yes", "no", "1", "0", "true", "false"] {
                assert!(misspelt(|asked| (asked == name).then(|| word.into())).is_empty(), "{name}={word}");
            }
        }
        assert!(misspelt(|_| None).is_empty());
    }
}
