//! The nearest valid word for a misspelt one, and the words for yes and no.
//!
//! Distance is Damerau-Levenshtein: an inserted, deleted or replaced character and two swapped neighbours cost one edit each.
//! Among candidates of equal distance the longest common beginning decides (Jaro-Winkler).

/// Returns the candidate most similar to `word`; `None` if there are no candidates.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let score = |c: &&str| {
        ((strsim::normalized_damerau_levenshtein(word, c) * 1e3 + strsim::jaro_winkler(word, c)) * 1e6) as u64
    };
    candidates.into_iter().max_by_key(score)
}

/// Returns the nearest candidate if it is at most `edits` edits away from `word`.
pub fn nearest_within<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>, edits: usize) -> Option<&'a str> {
    nearest(word, candidates.into_iter().filter(|c| strsim::damerau_levenshtein(word, c) <= edits))
}

/// Whether a word says yes or no: `yes`, `on`, `true`, `1`, or `no`, `off`, `false`, `0`. `None`: neither.
pub fn switch(word: &str) -> Option<bool> {
    match word {
        "yes" | "on" | "true" | "1" => Some(true),
        "no" | "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_and_on_are_the_same() {
        assert!(["yes", "on", "true", "1"].iter().all(|word| switch(word) == Some(true)));
        assert!(["no", "off", "false", "0"].iter().all(|word| switch(word) == Some(false)));
        assert!(["", "Yes", "none", "2"].iter().all(|word| switch(word).is_none()));
    }

    #[test]
    fn swapped_letters_are_one_edit() {
        assert_eq!(nearest("sl", ["run", "ls", "stats"]), Some("ls"));
        assert_eq!(nearest("dve", ["dev", "drop", "dscp"]), Some("dev"));
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn a_distant_word_is_not_suggested() {
        assert_eq!(nearest_within("upd", ["udp", "packet"], 1), Some("udp"));
        assert_eq!(nearest_within("eth0", ["udp", "packet"], 2), None);
    }
}
