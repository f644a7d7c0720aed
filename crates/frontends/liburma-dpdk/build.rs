//! Gives the shared library the name that programs of UMDK were linked against.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liburma.so.0");
}
