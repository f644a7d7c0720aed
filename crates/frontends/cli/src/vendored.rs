//! Copies of libibverbs and librdmacm that Python wheels carry, under names such as `libibverbs-1de1263b.so.1.14.48.0`.
//!
//! Such a copy finds no device of Burst, and neither `LD_LIBRARY_PATH` nor a library of the usual name takes its place: the
//! wheel's libraries ask for its own name. Preloaded libraries come first in the search for symbols, whatever a copy is called.
//! They are preloaded only where a copy is found, because a preload reaches all children of the program, too.
//!
//! An environment of Python is found by the place of its programs: `PREFIX/bin/python` and scripts beside it have
//! `PREFIX/lib/pythonX.Y/site-packages`. Symbolic links are not resolved, because in a virtual environment the link's place
//! counts. Looked at are the environments of the program, of the interpreter that a script names, of the python3 in `PATH` (for
//! `sh -c`, `mpirun` and other programs that start it), those that `VIRTUAL_ENV`, `CONDA_PREFIX` and `PYTHONUSERBASE` name,
//! `.venv` of the working directory (`uv run`), and `PYTHONPATH`. auditwheel puts copies into `PACKAGE.libs`. conda has them in
//! `PREFIX/lib` under the usual name, where the run path of its programs comes before `LD_LIBRARY_PATH`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Libraries of which wheels carry copies, and ours that take their place.
const REPLACED: [(&str, &str); 2] = [("libibverbs", "libibverbs.so.1"), ("librdmacm", "librdmacm.so.1")];
/// Longest first line of a script that is read, as in the kernel.
const SHEBANG_MAX: u64 = 255;
/// Entries of one directory that are looked at: an environment may have thousands of packages, on a slow disk.
const ENTRIES_MAX: usize = 16_384;

/// Copies of libibverbs and librdmacm that this program, or without one any program of Python that is started here, may load.
pub fn copies(program: Option<&OsStr>) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for prefix in prefixes(program) {
        directories.extend(packages_of(&prefix).iter().flat_map(|place| libraries_of(place)));
        if prefix.join("conda-meta").is_dir() {
            directories.push(prefix.join("lib"));
        }
    }
    let named = std::env::var_os("PYTHONPATH");
    directories.extend(named.iter().flat_map(std::env::split_paths).flat_map(|place| libraries_of(&place)));
    let mut found: Vec<PathBuf> = directories.iter().flat_map(|directory| copies_in(directory)).collect();
    found.sort();
    found.dedup();
    found
}

/// The value of `LD_PRELOAD` with our libraries before what stands there already; each once.
pub fn preload(libraries: &Path, rest: Option<&OsStr>) -> OsString {
    let ours = REPLACED.map(|(_, name)| libraries.join(name).into_os_string());
    let mut made = ours[0].clone();
    made.push(":");
    made.push(&ours[1]);
    // Blanks and colons separate.
    let words = rest.unwrap_or_default().as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    for word in words.filter(|word| !word.is_empty() && !ours.iter().any(|one| one.as_bytes() == *word)) {
        made.push(":");
        made.push(OsStr::from_bytes(word));
    }
    made
}

/// Prefixes of the environments of Python that the program may use, each once.
fn prefixes(program: Option<&OsStr>) -> Vec<PathBuf> {
    let named = program.and_then(found_in_path);
    let interpreter = named.as_deref().and_then(interpreter_of);
    let executables = [named, interpreter, found_in_path(OsStr::new("python3"))];
    let mut made: Vec<PathBuf> = executables.iter().flatten().flat_map(|path| prefixes_of(path)).collect();
    made.extend(
        ["VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONUSERBASE"].iter().filter_map(std::env::var_os).map(PathBuf::from),
    );
    made.extend(std::env::var_os("HOME").map(|user| Path::new(&user).join(".local")));
    made.extend(std::env::current_dir().ok().map(|here| here.join(".venv")));
    made.sort();
    made.dedup();
    made
}

/// The prefix of an executable. One of pyenv's `shims` stands for the same of each version that pyenv has.
fn prefixes_of(executable: &Path) -> Vec<PathBuf> {
    let Some(directory) = executable.parent() else { return Vec::new() };
    let Some(prefix) = directory.parent() else { return Vec::new() };
    if directory.file_name() == Some(OsStr::new("shims")) {
        return subdirectories(&prefix.join("versions"), |_| true);
    }
    vec![prefix.to_owned()]
}

/// The file that `execvp` would execute.
fn found_in_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return std::path::absolute(program).ok();
    }
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// The interpreter that a script names in its first line; for `env` the program that it would find.
fn interpreter_of(path: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    BufReader::new(fs::File::open(path).ok()?.take(SHEBANG_MAX)).read_until(b'\n', &mut line).ok()?;
    let words = line.strip_prefix(b"#!")?;
    let mut words = words.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let named = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    match words.next() {
        Some(program) if named.file_name() == Some(OsStr::new("env")) => found_in_path(OsStr::from_bytes(program)),
        _ => Some(named),
    }
}

/// The directories `site-packages` and `dist-packages` of a prefix.
fn packages_of(prefix: &Path) -> Vec<PathBuf> {
    let libraries = ["lib", "lib64", "local/lib"].map(|lib| prefix.join(lib));
    let versions = libraries.iter().flat_map(|lib| subdirectories(lib, |name| name.starts_with(b"python3")));
    versions.flat_map(|python| ["site-packages", "dist-packages"].map(|last| python.join(last))).collect()
}

/// The directories `PACKAGE.libs` of a directory of packages.
fn libraries_of(place: &Path) -> Vec<PathBuf> {
    subdirectories(place, |name| name.ends_with(b".libs"))
}

/// The subdirectories whose name is `wanted`.
fn subdirectories(of: &Path, wanted: impl Fn(&[u8]) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let named = entries.filter(|entry| wanted(entry.file_name().as_bytes()));
    named.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Files of a directory that are copies of the replaced libraries.
fn copies_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(ENTRIES_MAX);
    entries.filter(|entry| is_copy(entry.file_name().as_bytes())).map(|entry| entry.path()).collect()
}

/// Whether a file's name is that of a copy: the library's, then perhaps a hyphen and a hash, then the ending. A provider
/// (`libibverbs-mlx5.so`) is none.
fn is_copy(name: &[u8]) -> bool {
    REPLACED.iter().any(|(library, _)| {
        let Some(rest) = name.strip_prefix(library.as_bytes()) else { return false };
        let hash = rest.strip_prefix(b"-").unwrap_or_default();
        let digits = hash.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let ending = if digits > 0 { &hash[digits..] } else { rest };
        ending.starts_with(b".so")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn names_of_copies_are_known() {
        for copy in ["libibverbs-1de1263b.so.1.14.48.0", "librdmacm-0.so.1", "libibverbs.so.1", "libibverbs.so"] {
            assert!(is_copy(copy.as_bytes()), "{copy}");
        }
        for other in [
            "libibverbs-mlx5.so",
            "libibverbs-",
            "libibverbs",
            "libibverbs-1de1263b.txt",
            "libmlx5-79ef1d27.so.1",
            "libibverbsx.so",
            "",
        ] {
            assert!(!is_copy(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn ours_are_preloaded_first_and_once() {
        let ours = "/b/libibverbs.so.1:/b/librdmacm.so.1";
        let rows = [
            (None, ours.to_owned()),
            (Some(""), ours.to_owned()),
            (Some("/x.so"), format!("{ours}:/x.so")),
            (Some("/x.so /b/librdmacm.so.1::y.so"), format!("{ours}:/x.so:y.so")),
        ];
        for (rest, want) in rows {
            assert_eq!(preload(Path::new("/b"), rest.map(OsStr::new)), OsString::from(want), "{rest:?}");
        }
    }

    /// A virtual environment with a copy, as it lies after `pip install`: a link to an interpreter elsewhere, a script, a
    /// package's libraries.
    #[test]
    fn an_environment_is_found_by_interpreter_and_by_script() {
        let place = std::env::temp_dir().join(format!("burst-vendored-{}", std::process::id()));
        let libraries = place.join("lib/python3.11/site-packages/nixl_cu12.libs");
        fs::create_dir_all(&libraries).unwrap();
        fs::create_dir_all(place.join("bin")).unwrap();
        symlink("/bin/true", place.join("bin/python")).unwrap();
        let copy = libraries.join("libibverbs-1de1263b.so.1.14.48.0");
        fs::write(&copy, "").unwrap();
        fs::write(libraries.join("libmlx5-79ef1d27.so.1"), "").unwrap();
        let script = place.join("bin/tool");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        // A script elsewhere whose interpreter is the environment's.
        let elsewhere = place.join("tool");
        fs::write(&elsewhere, format!("#! {} -u\n", place.join("bin/python").display())).unwrap();
        for program in [place.join("bin/python"), script, elsewhere] {
            assert!(copies(Some(program.as_os_str())).contains(&copy), "{}", program.display());
        }
        for program in ["/bin/true", "/nonexistent/python", "no-such-program"] {
            assert!(!copies(Some(OsStr::new(program))).contains(&copy), "{program}");
        }
        // pyenv's command for it, in whatever version.
        fs::create_dir_all(place.join("pyenv/shims")).unwrap();
        fs::create_dir_all(place.join("pyenv/versions")).unwrap();
        symlink(&place, place.join("pyenv/versions/3.11.7")).unwrap();
        fs::write(place.join("pyenv/shims/python"), "#!/usr/bin/env bash\n").unwrap();
        let by_pyenv = copies(Some(place.join("pyenv/shims/python").as_os_str()));
        assert!(
            by_pyenv.iter().any(|path| path.ends_with("nixl_cu12.libs/libibverbs-1de1263b.so.1.14.48.0")),
            "{by_pyenv:?}"
        );
        fs::remove_dir_all(&place).unwrap();
    }

    /// conda's libraries have the usual names; the same directory of another prefix holds the system's.
    #[test]
    fn libraries_of_conda_are_copies() {
        let place = std::env::temp_dir().join(format!("burst-conda-{}", std::process::id()));
        fs::create_dir_all(place.join("bin")).unwrap();
        fs::create_dir_all(place.join("lib")).unwrap();
        let (program, copy) = (place.join("bin/program"), place.join("lib/librdmacm.so.1"));
        fs::write(&program, "").unwrap();
        fs::write(&copy, "").unwrap();
        assert!(!copies(Some(program.as_os_str())).contains(&copy));
        fs::create_dir_all(place.join("conda-meta")).unwrap();
        assert!(copies(Some(program.as_os_str())).contains(&copy));
        fs::remove_dir_all(&place).unwrap();
    }
}
