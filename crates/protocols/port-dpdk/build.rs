//! Compiles the shim over DPDK's inline functions and names the libraries that it needs. Does nothing without the
//! feature `linked`.

use std::process::Command;

/// Libraries that the shim calls. Drivers are plug-ins that the EAL loads itself.
const LIBRARIES: [&str; 6] = ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal", "rte_kvargs"];

fn main() {
    println!("cargo::rerun-if-changed=csrc");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    if std::env::var_os("CARGO_FEATURE_LINKED").is_none() {
        return;
    }
    let flags = pkg_config("--cflags");
    let mut build = cc::Build::new();
    build.file("csrc/shim.c").warnings(true).extra_warnings(true).opt_level(3);
    // DPDK's own headers cause warnings.
    for flag in flags.split_whitespace() {
        match flag.strip_prefix("-I") {
            Some(directory) => build.flag("-isystem").flag(directory),
            None => build.flag(flag),
        };
    }
    build.compile("burst_dpdk_shim");
    for flag in pkg_config("--libs-only-L").split_whitespace() {
        println!("cargo::rustc-link-search=native={}", flag.trim_start_matches("-L"));
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
}

/// Runs pkg-config for libdpdk; the build fails with pkg-config's message if there is none.
fn pkg_config(option: &str) -> String {
    let output = Command::new("pkg-config").args([option, "libdpdk"]).output();
    let output = output.unwrap_or_else(|e| panic!("the feature dpdk needs pkg-config: {e}"));
    assert!(
        output.status.success(),
        "the feature dpdk needs libdpdk (Debian: libdpdk-dev): {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
