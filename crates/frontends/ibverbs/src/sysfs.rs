//! `ibv_get_sysfs_path` and `ibv_read_sysfs_file`. Burst's devices have no directory in sysfs: the contents of the few files that
//! programs read of them come from memory, all others from sysfs.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

/// Files of Burst's devices under `/sys/class/infiniband/<name>`, and their contents.
const FILES: &[(&str, &str)] = &[("board_id", "burst"), ("hca_type", "burst"), ("fw_ver", env!("CARGO_PKG_VERSION"))];
/// Directory in which a kernel device would have its own directory.
const OURS: &str = "/sys/class/infiniband/burst";

/// Mount point of sysfs.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

fn content(dir: &str, file: &str) -> Option<Vec<u8>> {
    if let Ok(bytes) = std::fs::read(Path::new(dir).join(file)) {
        return Some(bytes);
    }
    let (_, text) = FILES.iter().find(|(name, _)| *name == file).filter(|_| dir.starts_with(OURS))?;
    Some(text.as_bytes().to_vec())
}

/// `ibv_read_sysfs_file`: reads `dir`/`file` into `buf` without the last newline, zero-terminated if it fits. Returns the length,
/// or -1.
///
/// # Safety
/// `dir` and `file` must be C strings, `buf` writable for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    crate::boundary::number(|| {
        // SAFETY: the caller gives C strings.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let text =
            content(&dir.to_string_lossy(), &file.to_string_lossy()).ok_or(crate::boundary::Errno(libc::ENOENT))?;
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        let len = text.len().min(size);
        // SAFETY: the caller gives `size` writable bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, len);
            if len < size {
                *buf.add(len) = 0;
            }
        }
        Ok(len as c_int)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn board_id_is_answered_from_memory_and_other_files_are_read() {
        let mut buf = [1 as c_char; 64];
        // SAFETY: C strings and a buffer of the given size.
        let len = unsafe {
            ibv_read_sysfs_file(c"/sys/class/infiniband/burst0".as_ptr(), c"board_id".as_ptr(), buf.as_mut_ptr(), 64)
        };
        assert_eq!((len, buf[5]), (5, 0));
        // SAFETY: as above.
        let len =
            unsafe { ibv_read_sysfs_file(c"/proc/sys/kernel".as_ptr(), c"ostype".as_ptr(), buf.as_mut_ptr(), 64) };
        assert_eq!(len, 5);
        // SAFETY: as above.
        let len = unsafe { ibv_read_sysfs_file(c"/none".as_ptr(), c"board_id".as_ptr(), buf.as_mut_ptr(), 64) };
        assert_eq!(len, -1);
    }
}
