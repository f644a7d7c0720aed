//! `burst why`: the table of reasons, for people.

use burst_base::Reason;
use burst_base::reason::Class;
use clap::ArgMatches;
use std::process::ExitCode;

/// Explains one reason, or lists all.
pub fn why(matches: &ArgMatches) -> ExitCode {
    let Some(word) = matches.get_one::<String>("reason") else {
        for reason in Reason::ALL {
            println!("{:4}  {:<28} {}", code(*reason), reason.name(), reason.explanation());
        }
        return ExitCode::SUCCESS;
    };
    match find(word) {
        Ok(reason) => {
            println!("{} ({}, vendor_err {})", reason.name(), class(reason.class()), code(reason));
            println!("  what: {}", reason.explanation());
            println!("  cure: {}", reason.cure());
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("burst: {sentence}");
            ExitCode::from(burst_args::EXIT_USAGE)
        }
    }
}

/// The number that `vendor_err` shows.
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
    found.copied().ok_or_else(|| {
        let near = burst_args::nearest(&name, Reason::ALL.iter().map(|r| r.name())).unwrap_or_default();
        format!("no reason is called {word:?}; the nearest is {near:?}")
    })
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
        assert!(find("0").is_err() && find("9999").is_err() && find("").is_err());
    }
}
