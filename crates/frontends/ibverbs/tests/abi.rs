//! The linked libibverbs: symbols and versions, providers loaded with it, programs without a daemon.
//!
//! Comparisons with Debian's packages are skipped, with a sentence, where those are not installed.

mod linked;

use linked::{lib_dir, run, symbols};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

const DEBIAN_DIR: &str = "/usr/lib/x86_64-linux-gnu";
const NODES: [u32; 7] = [25, 33, 34, 57, 59, 64, 65];

fn library() -> PathBuf {
    lib_dir().join("libibverbs.so.1")
}

#[test]
fn nothing_of_debian_s_library_is_missing() {
    let theirs = Path::new(DEBIAN_DIR).join("libibverbs.so.1");
    if !theirs.exists() {
        eprintln!("skipped: {} is not installed", theirs.display());
        return;
    }
    let (ours, theirs) = (symbols(&library()), symbols(&theirs));
    assert!(theirs.len() > 150, "readelf shows only {}", theirs.len());
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_name_of_the_tables_is_there() {
    let ours = symbols(&library());
    let abi = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi");
    let table = |name: &str| std::fs::read_to_string(abi.join(name)).unwrap();
    for file in ["public.txt", "legacy.txt"] {
        for line in table(file).lines().filter(|l| !l.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (node, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(ours.contains(&format!("{name}@{node}")), "{name}@{node}");
        }
    }
    for node in NODES {
        for line in table("private.txt").lines().filter(|l| !l.starts_with('#')) {
            let symbol = format!("{}@IBVERBS_PRIVATE_{node}", line.split_whitespace().next().unwrap());
            assert!(ours.contains(&symbol), "{symbol}");
        }
        assert!(ours.contains(&format!("verbs_register_driver_{node}@IBVERBS_PRIVATE_{node}")));
    }
}

/// A program that looks up a name at run time gives no version, and finds only names that have a default one.
#[test]
fn every_private_name_is_found_without_a_version() {
    let file = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the library's constructors have no demands, and it stays loaded.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    let table = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/private.txt")).unwrap();
    for line in table.lines().filter(|l| !l.starts_with('#')) {
        let name = CString::new(line.split_whitespace().next().unwrap()).unwrap();
        // SAFETY: the handle is that of the library.
        assert!(!unsafe { libc::dlsym(handle, name.as_ptr()) }.is_null(), "{name:?}");
    }
}

#[test]
fn only_interposed_functions_are_exported_without_a_version() {
    let mut bare = symbols(&library());
    bare.retain(|name| !name.contains('@') && !name.starts_with("IBVERBS_"));
    let interposed = ["_Fork", "clone", "madvise", "mmap", "mmap64", "mprotect", "mremap", "munmap"];
    assert_eq!(bare.into_iter().collect::<Vec<_>>(), interposed);
}

#[test]
fn real_providers_load_beside_it() {
    for provider in ["libmlx5.so.1", "libefa.so.1"] {
        if !Path::new(DEBIAN_DIR).join(provider).exists() {
            eprintln!("skipped: {provider} is not installed");
            continue;
        }
        let out = run("/bin/true", &[], &[("LD_PRELOAD", provider), ("LD_BIND_NOW", "1")]).unwrap();
        assert!(out.status.success());
        assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn without_a_daemon_the_list_is_empty_and_one_sentence_is_printed() {
    let Some(out) = run("ibv_devices", &[], &[]) else { return };
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success());
    assert!(!stdout.contains("burst"), "{stdout}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("/nonexistent/burstd.sock") && stderr.contains("burst run"), "{stderr}");
    let Some(out) = run("ibv_devices", &[], &[("BURST_QUIET", "1")]) else { return };
    assert!(out.stderr.is_empty());
    let Some(out) = run("ibv_devinfo", &[], &[]) else { return };
    assert!(String::from_utf8_lossy(&out.stderr).contains("No IB devices found"));
}

fn open() -> *mut libc::c_void {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: a C string; the library's initialization does nothing.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    handle
}

// SAFETY: as in dlfcn.h.
unsafe extern "C" {
    fn dlvsym(handle: *mut libc::c_void, name: *const libc::c_char, version: *const libc::c_char) -> *mut libc::c_void;
}

#[test]
fn dlvsym_finds_versions() {
    let handle = open();
    let find = |name: &CStr, version: &CStr| {
        // SAFETY: a live handle and C strings.
        !unsafe { dlvsym(handle, name.as_ptr(), version.as_ptr()) }.is_null()
    };
    // Symbols and versions that NCCL and NVSHMEM look up.
    for (name, version) in [
        (c"ibv_get_device_list", c"IBVERBS_1.1"),
        (c"ibv_reg_mr_iova2", c"IBVERBS_1.8"),
        (c"ibv_query_ece", c"IBVERBS_1.10"),
        (c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12"),
        (c"ibv_query_port_speed", c"IBVERBS_1.16"),
    ] {
        assert!(find(name, version), "{name:?} {version:?}");
    }
    assert!(!find(c"ibv_get_device_list", c"IBVERBS_1.18"));
    // SAFETY: a live handle.
    unsafe { libc::dlclose(handle) };
}

#[test]
fn it_can_be_opened_and_closed_again_and_again_from_threads() {
    library();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..50 {
                    let handle = open();
                    // SAFETY: a live handle and a C string.
                    let f = unsafe { libc::dlsym(handle, c"ibv_wc_status_str".as_ptr()) };
                    assert!(!f.is_null());
                    // SAFETY: the function has this type in `verbs.h`.
                    let f: extern "C" fn(u32) -> *const libc::c_char = unsafe { std::mem::transmute(f) };
                    // SAFETY: the function returns a C string.
                    assert_eq!(unsafe { CStr::from_ptr(f(0)) }, c"success");
                    // SAFETY: a live handle.
                    unsafe { libc::dlclose(handle) };
                }
            });
        }
    });
}
