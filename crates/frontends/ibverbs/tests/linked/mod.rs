//! The linked libraries for tests: their folder, their symbols, and programs that load them.
//!
//! The tests of librdmacm include this file by its path: cargo has no other way to share the code of tests without a crate.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Folder of the linked libraries: that of `BURST_LIBS`, else made once per run.
pub fn lib_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(built) = std::env::var_os("BURST_LIBS") {
            return PathBuf::from(built);
        }
        let script = root().join("scripts/build-libs.sh");
        let out = Command::new(script).arg("debug").output().expect("the script runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        target.join("debug/lib")
    })
}

pub fn readelf(option: &str, library: &Path) -> String {
    let out = Command::new("readelf").args([option, "-W"]).arg(library).output().expect("binutils");
    String::from_utf8(out.stdout).unwrap()
}

/// `name@version`, or `name` without a version, of all defined global symbols, default or not.
pub fn symbols(library: &Path) -> BTreeSet<String> {
    readelf("--dyn-syms", library)
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|f| f.len() >= 8 && f[6] != "UND" && f[6] != "ABS" && f[4] == "GLOBAL")
        .map(|f| f[7].replace("@@", "@"))
        .collect()
}

/// Runs a program with the libraries first in its search path, and without a daemon. `None`: it is not installed.
pub fn run(program: &str, arguments: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", lib_dir()).env("BURST_SOCKET", "/nonexistent/burstd.sock");
    command.env_remove("BURST_QUIET").envs(env.iter().copied());
    match command.output() {
        Ok(out) => Some(out),
        Err(e) => {
            eprintln!("skipped: {program}: {e}");
            None
        }
    }
}
