//! Compiles the layer over verbs, and the BPF programs with clang. Without clang the crate is built without them, and
//! takes connections by nf_tables.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=csrc");
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    // Of `scripts/fuzz`: a worker for fuzz targets.
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    cc::Build::new().file("csrc/verbs.c").warnings(true).extra_warnings(true).compile("burst_proxy_verbs");
    println!("cargo::rustc-link-lib=dylib=rdmacm");
    println!("cargo::rustc-link-lib=dylib=ibverbs");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    for name in ["steer", "unmark"] {
        let object = Path::new(&out).join(format!("{name}.bpf.o"));
        if let Err(why) = compile_bpf(&format!("csrc/{name}.bpf.c"), &object) {
            println!("cargo::warning=burst-proxy is built without BPF programs: {why}");
            std::fs::write(&object, b"").expect("cargo's directory can be written");
        }
    }
}

fn compile_bpf(source: &str, object: &Path) -> Result<(), String> {
    let named = std::env::var("BPF_CLANG").ok();
    let candidates =
        named.as_deref().map_or(vec!["clang", "clang-14", "clang-16", "clang-18", "clang-19"], |one| vec![one]);
    let mut last = "clang is missing (Debian: apt-get install clang-14 libbpf-dev)".to_owned();
    for clang in candidates {
        // asm/types.h lies in the architecture's directory, which the target bpf does not search.
        let machine = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
        let flags = ["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", &machine, "-c", source, "-o"];
        match Command::new(clang).args(flags).arg(object).output() {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => last = String::from_utf8_lossy(&done.stderr).into_owned(),
            Err(_) => {}
        }
    }
    Err(last.lines().take(5).collect::<Vec<_>>().join(" / "))
}
