//! Generates the C structs of `rdma/rdma_cma.h` (a build dependency, from rdma-core's headers) as Rust types, and the
//! declarations of the verbs functions that the library calls; those come from our `libibverbs.so.1`.

use std::{env, path::PathBuf};

/// Types wanted, with what they contain.
const TYPES: &str = "rdma_.*|ibv_.*|verbs_context";
/// Functions called: exported ones only, the inline ones of the header are applications' business.
const FUNCTIONS: &str = "ibv_(get_device_list|free_device_list|open_device|close_device|get_device_name|get_device_index\
    |alloc_pd|dealloc_pd|create_comp_channel|destroy_comp_channel|create_cq|destroy_cq|create_qp|destroy_qp|modify_qp\
    |query_qp|query_device|create_srq|destroy_srq|attach_mcast|detach_mcast|ack_cq_events)";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=abi/wrapper.h");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("cma.rs");
    bindgen::Builder::default()
        .header("abi/wrapper.h")
        .allowlist_type(TYPES)
        .allowlist_var("(IBV|RDMA|RAI)_.*")
        .allowlist_function(FUNCTIONS)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .derive_default(true)
        .derive_debug(false)
        .generate_comments(false)
        .generate()
        .expect("bindgen needs libclang and librdmacm-dev (scripts/install-deps installs both)")
        .write_to_file(out)
        .expect("the output directory is writable");
}
