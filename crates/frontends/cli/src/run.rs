//! `burst run`: finds or starts the daemon, sets the environment, mounts the host files and executes the program.

use crate::daemon;
use crate::host_files::{DeviceSnapshot, private};
use crate::in_process;
use crate::install;
use crate::sharing;
use crate::sockets::{self, FoundDaemon};
use crate::vendored;
use burst_control::in_process::{LENT_MODE, MODE_ENV};
use burst_control::socket_path::SOCKET_ENV;
use burst_control::trust::{self, TRUST_ENV};
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit code when Burst itself has failed; `env`, `nohup` and container tools use the same number.
const EXIT_OURS: u8 = 125;
/// Exit code when the program exists but cannot be executed.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit code when there is no such program.
const EXIT_NOT_FOUND: u8 = 127;

/// Replaces this process by the program. Returns only on failure, after a sentence on stderr.
pub fn run(matches: &ArgMatches) -> ExitCode {
    let chosen = crate::chosen_socket(matches);
    let ports: Vec<String> = matches.get_many::<String>("port").into_iter().flatten().cloned().collect();
    // Before a daemon is started, which would keep the port for a program that does not exist.
    if let Some(program) = matches.get_many::<OsString>("program").and_then(|mut words| words.next())
        && !exists(program, std::env::var_os("PATH").as_deref())
    {
        return not_found(program);
    }
    if matches.get_flag("lent") {
        return run_in_process(matches, &lent_variables(chosen.as_deref()));
    }
    if matches.get_flag("in-process") {
        return run_in_process(matches, &in_process::variables(&ports));
    }
    let prepared = install::library_directory()
        .and_then(|libraries| Ok((libraries, daemon_socket(chosen.as_deref(), &ports, matches.get_flag("no-start"))?)));
    match prepared {
        Ok((libraries, socket)) => {
            if !matches.get_flag("no-host-files") {
                show_host_files(&socket);
            }
            become_program(matches, &libraries, socket_variables(&socket))
        }
        Err(sentence) => {
            eprintln!("burst: {sentence}");
            ExitCode::from(EXIT_OURS)
        }
    }
}

/// The environment variables of a program that shares the addresses of the daemon at the chosen socket.
fn lent_variables(chosen: Option<&Path>) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![(MODE_ENV, OsString::from(LENT_MODE))];
    variables.extend(chosen.map(|socket| (SOCKET_ENV, socket.into())));
    variables
}

/// The same for a program with a host of its own, which these environment variables describe.
fn run_in_process(matches: &ArgMatches, variables: &[(&'static str, OsString)]) -> ExitCode {
    let prepared = install::library_directory()
        .and_then(|libraries| in_process::rehearse(&libraries, variables).map(|snapshot| (libraries, snapshot)));
    match prepared {
        Ok((libraries, snapshot)) => {
            // Only root needs no user namespace for these files, and the daemon lends nothing to other namespaces of users.
            let may_enter = !matches.get_flag("lent") || rustix::process::geteuid().is_root();
            if may_enter && !matches.get_flag("no-host-files") {
                enter(Ok(snapshot));
            }
            become_program(matches, &libraries, variables.to_vec())
        }
        Err(sentence) => {
            eprintln!("burst: {sentence}");
            ExitCode::from(EXIT_OURS)
        }
    }
}

/// The socket of a running daemon. Starts a daemon if none runs.
fn daemon_socket(chosen: Option<&Path>, ports: &[String], no_start: bool) -> Result<PathBuf, String> {
    let tried = sockets::find(chosen);
    if let Some((path, FoundDaemon::Alive(_))) = tried.last() {
        if !ports.is_empty() {
            eprintln!("burst: a daemon already runs at {}; --port is for one that has to be started", path.display());
        }
        return absolute(path);
    }
    if let Some((path, FoundDaemon::Strange(why))) =
        tried.iter().find(|(_, found)| matches!(found, FoundDaemon::Strange(_)))
    {
        return Err(format!("{}: {why}", path.display()));
    }
    let named = chosen
        .map(Path::to_owned)
        .or_else(|| std::env::var_os(SOCKET_ENV).filter(|v| !v.is_empty()).map(PathBuf::from));
    for (_, found) in &tried {
        let FoundDaemon::Untrusted(why) = found else { continue };
        if named.is_some() {
            return Err(why.clone());
        }
        // A usual place, which another user may have taken: there are others.
        eprintln!("burst: not used: {why}");
    }
    if no_start {
        return Err(format!(
            "no daemon runs, and --no-start forbids to start one; tried {}",
            sockets::tried_clause(&tried)
        ));
    }
    let forbidden = tried.iter().find(|(_, found)| matches!(found, FoundDaemon::Forbidden)).map(|(path, _)| path);
    let refused = forbidden.map(|path| {
        format!(
            "this user may not connect to {}: ask its owner to start burstd with --socket-mode 0666",
            path.display()
        )
    });
    if let (Some(refused), Some(_)) = (&refused, &named) {
        return Err(format!("{refused}, or name another socket"));
    }
    let socket = absolute(&named.unwrap_or_else(burst_control::socket_path::daemon_socket))?;
    // A daemon of this user may fail because another user's daemon holds the UDP port: both must share one then.
    daemon::start(&socket, ports).map_err(|why| match refused.or_else(|| sharing::cure(&why, &socket)) {
        Some(cure) => format!("{why}; {cure}"),
        None => why,
    })?;
    Ok(socket)
}

/// Makes a path absolute: the daemon and the program may have other working directories.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Mounts the host files. A failure is only reported: most programs run without them.
fn show_host_files(socket: &Path) {
    enter(sockets::connect(Some(socket)).and_then(|mut client| DeviceSnapshot::take(&mut client)));
}

fn enter(shown: Result<DeviceSnapshot, String>) {
    if let Err(why) = shown.and_then(|snapshot| private::enter(&snapshot)) {
        eprintln!(
            "burst: {why}; without /dev/infiniband and /sys/class/infiniband UCX, NCCL and the like do not see the \
             device (--no-host-files: without these files and this line)"
        );
    }
}

/// The environment variables of a program that uses a daemon.
fn socket_variables(socket: &Path) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![(SOCKET_ENV, socket.into())];
    // This process has checked the socket before it entered the namespace, where its owner may have no number.
    if let Some(owner) = trust::unmapped_owner(socket) {
        variables.push((TRUST_ENV, trust::with_user(std::env::var(TRUST_ENV).ok().as_deref(), owner).into()));
    }
    variables
}

fn become_program(matches: &ArgMatches, libraries: &Path, variables: Vec<(&'static str, OsString)>) -> ExitCode {
    let mut words = matches.get_many::<OsString>("program").into_iter().flatten();
    let Some(program) = words.next() else { return ExitCode::from(burst_args::EXIT_USAGE) };
    let search = with_ours_first(libraries, std::env::var_os("LD_LIBRARY_PATH").as_deref());
    let mut command = Command::new(program);
    command.args(words).env("LD_LIBRARY_PATH", search).envs(variables);
    if !vendored::copies(Some(program)).is_empty() {
        command.env("LD_PRELOAD", vendored::preload(libraries, std::env::var_os("LD_PRELOAD").as_deref()));
    }
    let error = command.exec();
    if error.kind() == ErrorKind::NotFound {
        return not_found(program);
    }
    eprintln!("burst: cannot run {:?}: {error}", program.to_string_lossy());
    ExitCode::from(EXIT_NOT_EXECUTABLE)
}

fn not_found(program: &OsStr) -> ExitCode {
    eprintln!("burst: there is no program {:?}: check the spelling or install it", program.to_string_lossy());
    ExitCode::from(EXIT_NOT_FOUND)
}

/// Whether there is a file that `execvp` would try: the path, or for a name without a slash one of that name in a directory of
/// `search`, which is `PATH`.
fn exists(program: &OsStr, search: Option<&OsStr>) -> bool {
    let is_there = |path: &Path| !matches!(path.metadata(), Err(error) if is_absence(error.kind()));
    if program.as_encoded_bytes().contains(&b'/') {
        return is_there(Path::new(program));
    }
    // Without a PATH the places of the C library are searched, which exec knows.
    search.is_none_or(|search| std::env::split_paths(search).any(|directory| is_there(&directory.join(program))))
}

/// Whether an error says that there is no such file, and not that it cannot be looked at.
fn is_absence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The library search path with Burst's directory first, and at no other place.
fn with_ours_first(ours: &Path, rest: Option<&OsStr>) -> OsString {
    let mut path = ours.as_os_str().to_owned();
    for other in rest.filter(|r| !r.is_empty()).into_iter().flat_map(std::env::split_paths).filter(|p| p != ours) {
        path.push(":");
        path.push(other);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_as_exec_does() {
        let search = Some(OsStr::new("/nonexistent:/bin"));
        let exists = |name: &str, search| exists(OsStr::new(name), search);
        assert!(exists("sh", search) && exists("/bin/sh", None) && exists("anything", None));
        assert!(!exists("sh", Some(OsStr::new("/nonexistent"))) && !exists("no-such-program", search));
        assert!(
            !exists("/nonexistent", search) && !exists("/bin/sh/x", search) && !exists("./no-such-program", search)
        );
    }

    #[test]
    fn our_libraries_come_first_and_the_rest_stays() {
        let ours = Path::new("/b/lib");
        for (rest, want) in [(None, "/b/lib"), (Some("/x:/y"), "/b/lib:/x:/y"), (Some("/x:/b/lib"), "/b/lib:/x")] {
            assert_eq!(with_ours_first(ours, rest.map(OsStr::new)), want);
        }
        assert_eq!(with_ours_first(ours, Some(OsStr::new(""))), "/b/lib");
    }
}
