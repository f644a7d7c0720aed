//! Settings of earlier versions. A configuration that has one is refused with the reason, not as if it had never existed.

/// A key that was removed, or a word of a key that is still there.
struct RemovedSetting {
    key: &'static str,
    /// The removed word; `None`: the whole key.
    word: Option<&'static str>,
    reason: &'static str,
}

const REMOVED: &[RemovedSetting] = &[
    RemovedSetting {
        key: "sr_placement",
        word: None,
        reason: "early packets are always written in place; a program may rely on the last byte of a WRITE alone",
    },
    RemovedSetting { key: "rto", word: Some("irn"), reason: "only `burst sim` compares with IRN" },
    RemovedSetting {
        key: "urma_nodes",
        word: None,
        reason: "an address has a node of URMA while a program has it open",
    },
    RemovedSetting {
        key: "session_priority",
        word: None,
        reason: "the daemon's session takes the larger share wherever the kernel permits it",
    },
    RemovedSetting { key: "restart_pause", word: None, reason: "the longest pause is always 10 s" },
];

/// The sentence about a removed setting that `source` has: the key `key`, or its value `word`.
pub fn refusal(source: &str, key: &str, word: Option<&str>) -> Option<String> {
    let RemovedSetting { reason, .. } = REMOVED.iter().find(|removed| removed.key == key && removed.word == word)?;
    let value = word.map(|word| format!(" {word:?}")).unwrap_or_default();
    Some(format!("{source}:{value} was removed in November 2026, because {reason}"))
}

/// The flag among the words of a command line, or else the variable, of a removed key.
pub fn find(words: &[std::ffi::OsString], env: crate::Env) -> Option<String> {
    REMOVED.iter().filter(|removed| removed.word.is_none()).find_map(|RemovedSetting { key, .. }| {
        let (flag, variable) = (format!("--{}", key.replace('_', "-")), format!("BURST_{}", key.to_uppercase()));
        let is_flag = |word: &std::ffi::OsString| {
            word.to_str()
                .and_then(|word| word.strip_prefix(&flag))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let source = if words.iter().any(is_flag) { Some(flag.clone()) } else { env(&variable).map(|_| variable) };
        source.and_then(|source| refusal(&source, key, None))
    })
}

#[cfg(test)]
mod tests {
    use super::REMOVED;
    use crate::keys::KEYS;
    use crate::value::ValueKind;

    #[test]
    fn what_is_removed_is_not_there() {
        for removed in REMOVED {
            let key = KEYS.iter().find(|key| key.name == removed.key);
            match removed.word {
                None => assert!(key.is_none(), "{} is a key", removed.key),
                Some(word) => {
                    let kind = key.expect("a key that has lost a word").kind;
                    assert!(matches!(kind, ValueKind::Choice(words) if !words.contains(&word)), "{word} is valid");
                }
            }
        }
    }
}
