//! `burst why`: explains the last failure, those of a queue pair or a process ([`crate::failures`]), or a reason, also by the
//! status of a completion, because some programs print the status only. The word `daemon` is no reason: it shows why former
//! daemons fell ([`crate::falls`]).

use crate::failures::Failures;
use burst_base::Reason;
use burst_base::reason::Class;
use burst_control::failures::PacketOwner;
use clap::ArgMatches;
use std::process::ExitCode;

/// Statuses of failed completions by name and number, with the reasons that lead to them: programs often print the status only.
const STATUSES: &[(&str, usize, &[Reason])] = &[
    ("IBV_WC_LOC_LEN_ERR", 1, &[Reason::LocalLength, Reason::ReceiveTooShort]),
    ("IBV_WC_LOC_QP_OP_ERR", 2, &[Reason::LocalOperation, Reason::WindowBind, Reason::QueueCorrupt]),
    (
        "IBV_WC_LOC_PROT_ERR",
        4,
        &[
            Reason::LocalProtection,
            Reason::ReceiveProtection,
            Reason::PageMissing,
            Reason::PageRemoved,
            Reason::CopyFailed,
        ],
    ),
    ("IBV_WC_WR_FLUSH_ERR", 5, &[Reason::Flushed, Reason::DaemonDied]),
    ("IBV_WC_MW_BIND_ERR", 6, &[Reason::WindowBind]),
    ("IBV_WC_BAD_RESP_ERR", 7, &[Reason::BadResponse]),
    ("IBV_WC_LOC_ACCESS_ERR", 8, &[Reason::RemoteAccess]),
    ("IBV_WC_REM_INV_REQ_ERR", 9, &[Reason::RemoteInvalidReported]),
    ("IBV_WC_REM_ACCESS_ERR", 10, &[Reason::RemoteAccessReported]),
    ("IBV_WC_REM_OP_ERR", 11, &[Reason::RemoteOperationReported]),
    ("IBV_WC_RETRY_EXC_ERR", 12, &[Reason::RetryExhausted]),
    ("IBV_WC_RNR_RETRY_EXC_ERR", 13, &[Reason::RnrRetryExhausted]),
];

/// The status of a completion without an error.
const SUCCESS: &str = "IBV_WC_SUCCESS";

/// The word that lists the reasons.
const REASONS: &str = "reasons";

/// Explains one reason or failure, or lists them.
pub fn why(matches: &ArgMatches) -> ExitCode {
    let word = matches.get_one::<String>("reason").map(String::as_str);
    match word {
        Some("daemon") => return crate::falls::falls(matches),
        Some(REASONS) => return crate::finish(&Reason::ALL.iter().map(|r| as_line(*r)).collect::<String>()),
        _ => {}
    }
    if let Some(path) = matches.get_one::<String>("pcap") {
        return packets(matches, word, path);
    }
    let failures = match word {
        None => Some(Failures::Last),
        Some("all") => Some(Failures::All),
        Some(word) => object(word).map(Failures::About),
    };
    if let Some(failures) = failures {
        return crate::failures::failures(matches, failures);
    }
    match explain(word.unwrap_or_default()) {
        Ok(text) => crate::finish(&text),
        Err(sentence) => {
            crate::complain(sentence);
            ExitCode::from(burst_args::EXIT_USAGE)
        }
    }
}

/// Writes the packets of a queue pair or Jetty to a file.
fn packets(matches: &ArgMatches, word: Option<&str>, path: &str) -> ExitCode {
    let Some(of) = word.and_then(packet_owner) else {
        crate::complain(
            "--pcap needs the number of a queue pair or Jetty: burst why qp:0x11f --pcap packets.pcapng, or jetty:20",
        );
        return ExitCode::from(burst_args::EXIT_USAGE);
    };
    match crate::capture::write_kept(crate::chosen_socket(matches).as_deref(), of, path) {
        Ok(text) => crate::finish(&text),
        Err(sentence) => crate::fail(sentence),
    }
}

/// A number without a word is a queue pair's.
fn packet_owner(word: &str) -> Option<PacketOwner> {
    let number = object(word)?;
    match word.split_once(':') {
        None | Some(("qp", _)) => Some(PacketOwner::QueuePair(number)),
        Some(("jetty", _)) => Some(PacketOwner::Jetty(number)),
        Some(_) => None,
    }
}

/// The number of a queue pair, process, Jetty or connection: `qp:0x11f`, `pid:4711`, `jetty:20`, `id:0x1234` (communication id),
/// or a number that is too large for a reason.
fn object(word: &str) -> Option<u32> {
    let named = ["qp:", "pid:", "jetty:", "id:"].iter().find_map(|kind| word.strip_prefix(kind));
    let digits = named.unwrap_or(word);
    let number = digits.strip_prefix("0x").map_or_else(|| digits.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
    number.filter(|number| named.is_some() || *number as usize > Reason::COUNT && *number < 1 << 24)
}

fn as_line(reason: Reason) -> String {
    format!("{:4}  {:<28} {}\n", code(reason), reason.name(), reason.explanation())
}

/// The explanation of a reason or of a completion's status.
fn explain(word: &str) -> Result<String, String> {
    if let Some((name, number, reasons)) = status_named(word) {
        let reasons: String = reasons.iter().map(|r| as_text(*r)).collect();
        return Ok(format!(
            "{name} is status {number} of a completion; its vendor_err gives the reason, one of:\n{reasons}"
        ));
    }
    if as_status(word) == SUCCESS || as_status(word) == "SUCCESS" {
        return Ok(format!(
            "{SUCCESS} is status 0 of a completion: the work request was carried out, and its vendor_err means nothing\n"
        ));
    }
    let reason = find(word)?;
    let mut text = as_text(reason);
    // Only reasons of completions are a vendor_err: the number of another class may be meant as a status.
    let same = STATUSES.iter().find(|(_, number, _)| *number == code(reason) && word.parse() == Ok(*number));
    if let Some((name, number, _)) = same {
        text.push_str(&format!("  note: if {number} is the status of a completion: burst why {name}\n"));
    }
    Ok(text)
}

fn as_text(reason: Reason) -> String {
    format!(
        "{} ({}, vendor_err {})\n  what: {}\n  cure: {}\n",
        reason.name(),
        class(reason.class()),
        code(reason),
        reason.explanation(),
        reason.cure()
    )
}

/// A word as statuses are written.
fn as_status(word: &str) -> String {
    word.to_ascii_uppercase().replace('-', "_")
}

/// A status by its name in verbs, with or without `IBV_WC_`.
fn status_named(word: &str) -> Option<&'static (&'static str, usize, &'static [Reason])> {
    let word = as_status(word);
    STATUSES.iter().find(|(name, ..)| *name == word || name.strip_prefix("IBV_WC_") == Some(&word))
}

/// The reason of a number in `vendor_err`.
fn code(reason: Reason) -> usize {
    reason.index() + 1
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Drop => "a packet is dropped",
        Class::Nak => "a request is answered by a NAK",
        Class::Completion => "a work request ends with an error",
        Class::Refusal => "a call is refused",
        Class::Note => "a note: nothing is wrong",
    }
}

fn find(word: &str) -> Result<Reason, String> {
    let number = word.strip_prefix("0x").map_or_else(|| word.parse().ok(), |hex| usize::from_str_radix(hex, 16).ok());
    if let Some(number) = number {
        let found = number.checked_sub(1).and_then(|i| Reason::ALL.get(i));
        return found
            .copied()
            .ok_or_else(|| format!("no reason has the code {number}; codes are 1 to {}", Reason::COUNT));
    }
    let name = word.to_ascii_lowercase().replace('-', "_");
    let found = Reason::ALL.iter().find(|r| r.name() == name);
    found.copied().ok_or_else(|| format!("no reason is called {word:?}; the nearest is {:?}", nearest(word)))
}

/// The status or reason that a word is most probably meant as. One that begins with the word comes before one that contains it,
/// and both before those that are only similar.
fn nearest(word: &str) -> &'static str {
    let (status, reason) = (as_status(word), as_status(word).to_ascii_lowercase());
    let statuses = || STATUSES.iter().map(|(name, ..)| *name);
    let reasons = || Reason::ALL.iter().map(|r| r.name());
    if word.is_empty() {
        return reasons().next().unwrap_or_default();
    }
    let begins =
        statuses().find(|name| name.starts_with(&status)).or_else(|| reasons().find(|name| name.starts_with(&reason)));
    let contains =
        || statuses().find(|name| name.contains(&status)).or_else(|| reasons().find(|name| name.contains(&reason)));
    let similar = || {
        let is_status = status.starts_with("IBV_");
        if is_status { burst_grammar::nearest(&status, statuses()) } else { burst_grammar::nearest(&reason, reasons()) }
    };
    begins.or_else(contains).or_else(similar).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_and_by_code() {
        for reason in Reason::ALL {
            assert_eq!(find(reason.name()), Ok(*reason));
            assert_eq!(find(&code(*reason).to_string()), Ok(*reason));
            assert_eq!(find(&format!("{:#x}", code(*reason))), Ok(*reason));
        }
        assert_eq!(find("Retry-Exhausted"), Ok(Reason::RetryExhausted));
    }

    #[test]
    fn unknown_ones_are_answered_with_the_nearest() {
        assert!(find("retry_exhuasted").unwrap_err().contains("\"retry_exhausted\""));
        for (word, near) in [
            ("IBV_WC_RETRY", "IBV_WC_RETRY_EXC_ERR"),
            ("IBV_WC_RNR", "IBV_WC_RNR_RETRY_EXC_ERR"),
            ("IBV_WC_RETRY_EXC_ER", "IBV_WC_RETRY_EXC_ERR"),
            ("IBV_WC_RETYR_EXC_ERR", "IBV_WC_RETRY_EXC_ERR"),
            ("rem-access", "IBV_WC_REM_ACCESS_ERR"),
            ("retry_exh", "retry_exhausted"),
            ("bad_icrk", "bad_icrc"),
        ] {
            let sentence = explain(word).unwrap_err();
            assert!(sentence.ends_with(&format!("the nearest is {near:?}")), "{word}: {sentence}");
        }
        assert!(["IBV_WC_SUCCESS", "ibv_wc_success", "success"].iter().all(|word| explain(word).is_ok()));
        assert!(find("0").is_err() && find("9999").is_err() && find("").is_err());
    }

    #[test]
    fn numbers_of_queue_pairs_and_processes_are_no_reasons() {
        assert_eq!((object("qp:0x11f"), object("pid:12"), object("4711")), (Some(0x11f), Some(12), Some(4711)));
        assert_eq!((object("12"), object("0xc"), object("bad_icrc"), object("qp:x")), (None, None, None, None));
        assert_eq!(object("4294967295"), None, "longer than any queue pair number or process id");
    }

    #[test]
    fn a_status_leads_to_its_reasons() {
        for (name, number, reasons) in STATUSES {
            let text = explain(name).unwrap();
            assert!(reasons.iter().all(|r| text.contains(r.name())), "{text}");
            assert!(explain(&number.to_string()).unwrap().contains(name));
            assert_eq!(explain(&name.to_lowercase()["ibv_wc_".len()..]), Ok(text));
        }
        assert!(!explain("0xc").unwrap().contains("note:"), "vendor_err is what programs print in hexadecimal");
        assert!(!explain("trailing_bytes").unwrap().contains("note:"));
    }
}
