//! Generates the C structs of `infiniband/verbs.h` (a build dependency, from rdma-core's headers) as Rust types.
//! Only types and constants are taken: the inline functions are the application's, the functions are ours.

use std::{env, path::PathBuf};

/// Types wanted.
const TYPES: &str =
    "ibv_.*|verbs_context|_compat_ibv_port_attr|ib_uverbs_(qp_attr|ah_attr|global_route)|ib_user_path_rec";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=abi/wrapper.h");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("verbs.rs");
    bindgen::Builder::default()
        .header("abi/wrapper.h")
        .allowlist_type(TYPES)
        .allowlist_var("IBV_.*")
        .ignore_functions()
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .derive_default(true)
        .derive_debug(false)
        .generate_comments(false)
        .generate()
        .expect("bindgen needs libclang and libibverbs-dev (scripts/deps installs both)")
        .write_to_file(out)
        .expect("the output directory is writable");
}
