//! Manual pages and completions of shells, made from the command lines of `burst`, `burst-proxy`, `burst-sim`, `burst-switch` and
//! `burstd`.
//!
//! The files are part of the repository (`share/man`, `share/completions`), so that `make install` and packagers only copy them.
//! `cargo run -p burst-manual` writes them; a test fails while one of them is stale. The page burst(7) is written by hand.
#![forbid(unsafe_code)]

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::{Path, PathBuf};

/// Exit codes of `burst` and its commands, as a section in roff.
const EXIT_STATUS: &str =
    ".SH \"EXIT STATUS\"\n0: success. 1: failure. 2: wrong use; one sentence on stderr says what is wrong.\n";
/// Exit codes of `burst run`.
const EXIT_STATUS_OF_RUN: &str = ".SH \"EXIT STATUS\"\nThe program's. 125: Burst could not start the program. 126: the program cannot be \
     executed. 127: the program was not found. 2: wrong use of \\fBburst run\\fR.\n";

/// What the bottom of each page says.
const SOURCE: &str = concat!("Burst ", env!("CARGO_PKG_VERSION"));

/// The command line of `burst`, with those of the programs that it executes in their places.
pub fn burst() -> Command {
    let with_proxy = burst_cli::command().mut_subcommand("proxy", |_| burst_proxy::cli::command().name("proxy"));
    let with_sim = with_proxy.mut_subcommand("sim", |_| burst_simulator::command().name("sim"));
    with_sim.mut_subcommand("switch", |_| burst_switch::command().name("switch"))
}

/// One written file: its path below `share`, and its contents.
pub type WrittenFile = (PathBuf, Vec<u8>);

/// All files.
///
/// # Errors
/// A page could not be rendered.
pub fn files() -> std::io::Result<Vec<WrittenFile>> {
    let mut files = Vec::new();
    completions(&mut files, &burst());
    completions(&mut files, &burst_config::command());
    let mut burst = burst().disable_help_subcommand(true);
    burst.build();
    pages(&mut files, &burst, "1")?;
    let mut burstd = burst_config::command();
    burstd.build();
    pages(&mut files, &burstd, "8")?;
    Ok(files)
}

/// The files of `share` that differ from what [`files`] makes, and pages there that no command has.
///
/// # Errors
/// A page could not be rendered, or a directory cannot be read.
pub fn stale(share: &Path) -> std::io::Result<Vec<PathBuf>> {
    let files = files()?;
    let differs = |(path, wanted): &&WrittenFile| std::fs::read(share.join(path)).ok().as_ref() != Some(wanted);
    let mut stale: Vec<PathBuf> = files.iter().filter(differs).map(|(path, _)| path.clone()).collect();
    for directory in ["man/man1", "man/man8", "completions/bash", "completions/zsh", "completions/fish"] {
        for entry in std::fs::read_dir(share.join(directory)).into_iter().flatten() {
            let path = Path::new(directory).join(entry?.file_name());
            if !files.iter().any(|(known, _)| *known == path) {
                stale.push(path);
            }
        }
    }
    Ok(stale)
}

/// Writes all files below `share`, and removes pages that no command has.
///
/// # Errors
/// A page could not be rendered, or a file cannot be written.
pub fn write(share: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (files, stale) = (files()?, stale(share)?);
    for path in &stale {
        match files.iter().find(|(known, _)| known == path) {
            Some((_, contents)) => {
                let place = share.join(path);
                std::fs::create_dir_all(place.parent().expect("a file in a directory"))?;
                std::fs::write(place, contents)?;
            }
            None => std::fs::remove_file(share.join(path))?,
        }
    }
    Ok(stale)
}

/// The page of `command`, and those of its subcommands that help shows. `command` has been built.
fn pages(files: &mut Vec<WrittenFile>, command: &Command, section: &str) -> std::io::Result<()> {
    // `build` gives a subcommand the names of its parents, with hyphens.
    let name = command.get_display_name().unwrap_or(command.get_name()).replace(' ', "-");
    let man = Man::new(command.clone()).title(&name).section(section).source(SOURCE).manual("Burst");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut page)?;
    }
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() {
        man.render_extra_section(&mut page)?;
    }
    let status = if name == "burst-run" { EXIT_STATUS_OF_RUN } else { EXIT_STATUS };
    page.extend(status.as_bytes());
    page.extend(see_also(&name, command).as_bytes());
    files.push((format!("man/man{section}/{name}.{section}").into(), page));
    shown(command).try_for_each(|subcommand| pages(files, subcommand, section))
}

/// Subcommands that help shows.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
}

/// The section SEE ALSO: the page above and burst(7).
fn see_also(name: &str, command: &Command) -> String {
    let mut pages = vec![("burst", "7")];
    if name != "burst" {
        pages.insert(0, ("burst", "1"));
    }
    let above = name.strip_suffix(command.get_name()).map(|above| above.trim_end_matches('-')).unwrap_or_default();
    if !above.is_empty() && above != "burst" {
        pages.insert(1, (above, "1"));
    }
    if name != "burstd" {
        pages.push(("burstd", "8"));
    }
    let words: Vec<String> =
        pages.iter().map(|(page, section)| format!("\\fB{}\\fR({section})", page.replace('-', "\\-"))).collect();
    format!(".SH \"SEE ALSO\"\n{}\n", words.join(", "))
}

/// The completions of `command` for three shells, under the names by which each shell finds them.
fn completions(files: &mut Vec<WrittenFile>, command: &Command) {
    let name = command.get_name();
    let shells = [
        (Shell::Bash, format!("bash/{name}")),
        (Shell::Zsh, format!("zsh/_{name}")),
        (Shell::Fish, format!("fish/{name}.fish")),
    ];
    for (shell, file) in shells {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), name, &mut script);
        files.push((Path::new("completions").join(file), script));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../share")
    }

    #[test]
    fn the_files_are_those_of_the_command_lines() {
        let stale = stale(&share()).expect("rendered");
        assert!(stale.is_empty(), "stale: {stale:?}; run cargo run -p burst-manual");
    }

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let files = files().expect("rendered");
        let page = |name: &str| {
            let found = files.iter().find(|(path, _)| path.ends_with(name)).unwrap_or_else(|| panic!("no {name}"));
            String::from_utf8(found.1.clone()).expect("UTF-8")
        };
        assert!(page("burst-run.1").contains("in\\-process") && page("burst-run.1").contains("EXIT STATUS"));
        assert!(page("burst-proxy-why.1").contains("burst\\-proxy\\fR(1)"));
        assert!(page("burst-sim-hunt.1").contains("SYNOPSIS") && page("burstd.8").contains("selective\\-repeat"));
        assert!(files.iter().all(|(path, _)| !path.to_string_lossy().contains("janitor")), "a hidden command");
    }

    #[test]
    fn what_is_stale_is_written_and_what_no_command_has_is_removed() {
        let directory = std::env::temp_dir().join(format!("burst-manual-{}", std::process::id()));
        let extra = directory.join("man/man1/burst-former.1");
        std::fs::create_dir_all(extra.parent().expect("a directory")).expect("made");
        std::fs::write(&extra, "").expect("written");
        assert_eq!(stale(&directory).expect("rendered").len(), files().expect("rendered").len() + 1);
        write(&directory).expect("written");
        assert!(!extra.exists() && stale(&directory).expect("rendered").is_empty());
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
