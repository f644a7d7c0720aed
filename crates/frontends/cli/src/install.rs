//! Paths of Burst's other parts: beside this program in a build tree, or under the same prefix when installed.
//!
//! | part | build tree | installed |
//! | --- | --- | --- |
//! | `burstd` | beside `burst` | beside `burst`, else in `PATH` |
//! | libraries, `burst-pair`, `burst-exercise` | `lib/` beside `burst` | `../lib/burst/` |

use std::path::{Path, PathBuf};

/// The library that programs load.
pub const VERBS_LIBRARY: &str = "libibverbs.so.1";
/// The program by which `burst doctor` tests a queue pair.
pub const PAIR_PROGRAM: &str = "burst-pair";

/// The program that makes the traffic of `burst lab`.
pub const EXERCISE_PROGRAM: &str = "burst-exercise";

/// Directory of the running program, symbolic links resolved.
fn own_directory() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find out where burst itself is: {e}"))?;
    program.parent().map(Path::to_owned).ok_or_else(|| "burst has no directory".to_owned())
}

/// Directory of Burst's libraries.
///
/// # Errors
/// A sentence that names the places where they should be.
pub fn library_directory() -> Result<PathBuf, String> {
    library_directory_from(&own_directory()?)
}

fn library_directory_from(own: &Path) -> Result<PathBuf, String> {
    let places = [own.join("lib"), own.join("../lib/burst")];
    let found = places.iter().find(|p| p.join(VERBS_LIBRARY).is_file());
    let found = found.ok_or_else(|| {
        let [built, installed] = &places;
        format!(
            "{VERBS_LIBRARY} is neither in {} nor in {}: build it with make build, or install Burst again",
            built.display(),
            installed.display()
        )
    })?;
    found.canonicalize().map_err(|e| format!("{}: {e}", found.display()))
}

/// The daemon's program.
///
/// # Errors
/// A sentence that names the places where it should be.
pub fn daemon_program() -> Result<PathBuf, String> {
    let own = own_directory()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::iter::once(own.clone()).chain(std::env::split_paths(&path));
    let found = directories.map(|d| d.join("burstd")).find(|p| p.is_file());
    found.ok_or_else(|| {
        format!("burstd is neither in {} nor in PATH: run make build, or install Burst again", own.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_are_found_and_none_is_explained() {
        let root = std::env::temp_dir().join(format!("burst-layout-{}", std::process::id()));
        let bin = root.join("bin");
        std::fs::create_dir_all(root.join("lib/burst")).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        let why = library_directory_from(&bin).unwrap_err();
        assert!(why.contains("make build"), "{why}");
        std::fs::write(root.join("lib/burst").join(VERBS_LIBRARY), "").unwrap();
        assert!(library_directory_from(&bin).unwrap().ends_with("lib/burst"));
        std::fs::create_dir_all(bin.join("lib")).unwrap();
        std::fs::write(bin.join("lib").join(VERBS_LIBRARY), "").unwrap();
        assert!(library_directory_from(&bin).unwrap().ends_with("bin/lib"));
        std::fs::remove_dir_all(root).unwrap();
    }
}
