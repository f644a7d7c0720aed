//! The table of reasons is sound, and `docs/reasons.md` shows it as it is. `BLESS=1 cargo test -p burst-base` rewrites it.

use burst_base::Reason;
use burst_base::reason::Class;
use std::collections::HashSet;
use std::fmt::Write;
use std::path::PathBuf;

const CLASSES: [(Class, &str, &str); 5] = [
    (Class::Drop, "Dropped packets", "A packet was dropped without an answer."),
    (Class::Nak, "Refused requests", "A peer's request was answered by a NAK."),
    (Class::Completion, "Failed work requests", "A work request ended with an error completion."),
    (Class::Refusal, "Refused calls", "A control call was refused."),
    (Class::Note, "Notes", "Worth counting; nothing is wrong."),
];

fn page() -> String {
    let mut page = String::from(
        "# Reasons\n\nEvery dropped packet, refused request, failed completion and refused call has one of these reasons. \
         The name is\nthe counter's label and the argument of `burst why`; `vendor_err` of a completion is the number.\n\
         Made from `crates/base/base/src/reason.rs` by `BLESS=1 cargo test -p burst-base`; do not edit.\n",
    );
    for (class, title, sentence) in CLASSES {
        let rows: Vec<_> = Reason::ALL.iter().filter(|reason| reason.class() == class).collect();
        if rows.is_empty() {
            continue;
        }
        write!(
            page,
            "\n## {title}\n\n{sentence}\n\n| vendor_err | name | what happened | what to do |\n|---|---|---|---|\n"
        )
        .unwrap();
        for reason in rows {
            let (name, what, cure) = (reason.name(), reason.explanation(), reason.cure());
            writeln!(page, "| {} | `{name}` | {what} | {cure} |", reason.index() + 1).unwrap();
        }
    }
    page
}

#[test]
fn docs_show_the_table() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reasons.md");
    let page = page();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reasons.md is stale: run BLESS=1 cargo test -p burst-base");
}

#[test]
fn names_are_unique_labels_and_sentences_end() {
    let mut names = HashSet::new();
    for reason in Reason::ALL {
        assert!(names.insert(reason.name()), "{} twice", reason.name());
        assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        assert_eq!(Reason::ALL[reason.index()], *reason);
        for sentence in [reason.explanation(), reason.cure()] {
            assert!(sentence.ends_with('.') && !sentence.contains('|'), "{}: {sentence}", reason.name());
        }
    }
    assert_eq!(Reason::COUNT, Reason::ALL.len());
}
