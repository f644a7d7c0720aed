//! The size of this host's pages.

/// Bytes of a page on each host that Burst runs on.
pub const PAGE: usize = 4096;

/// Whether memory can be shared on this host.
///
/// # Errors
/// A sentence: the kernel's pages are of another size.
pub fn check_size() -> Result<(), String> {
    check(rustix::param::page_size())
}

fn check(bytes: usize) -> Result<(), String> {
    if bytes == PAGE {
        return Ok(());
    }
    Err(format!(
        "this kernel's pages have {bytes} bytes; Burst shares memory by pages of {PAGE} (on aarch64, distributions have a kernel with those, too)"
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn other_pages_are_refused_with_their_size() {
        assert_eq!(super::check(4096), Ok(()));
        assert!(super::check(65_536).is_err_and(|why| why.contains("65536 bytes") && why.contains("4096")));
    }
}
