//! Names in the daemon's answers that become names of files: devices, interfaces, counters.
//!
//! `burst host-files` and `burst run` write files of these names below `/sys/class/infiniband` and `/dev/infiniband`, as root in
//! the first case, and libraries give the names to programs that do the same. A name is checked once, when the message is
//! decoded: a message with `..` or a slash in such a name is malformed.

use serde::{Deserialize, Deserializer, de};

/// Maximum length of a name in bytes: `IBV_SYSFS_NAME_MAX` without the final zero.
pub const FILE_NAME_MAX: usize = 63;

/// Whether a name can be one file's name in any directory: 1 to [`FILE_NAME_MAX`] bytes, not `.` or `..`, without slashes, spaces
/// and control characters.
pub fn is_file_name(name: &str) -> bool {
    (1..=FILE_NAME_MAX).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.chars().any(|c| c == '/' || c.is_whitespace() || c.is_control())
}

fn checked<E: de::Error>(name: String, is_good: bool) -> Result<String, E> {
    if is_good { Ok(name) } else { Err(E::custom("a name that cannot be a file's")) }
}

/// Reads a name.
///
/// # Errors
/// The deserializer's, and a name that [`is_file_name`] refuses.
pub(crate) fn file_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    let is_good = is_file_name(&name);
    checked(name, is_good)
}

/// Reads a name that may be empty.
///
/// # Errors
/// As [`file_name`].
pub(crate) fn file_name_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    let is_good = name.is_empty() || is_file_name(&name);
    checked(name, is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, GidInfo};

    const HOSTILE: [&str; 9] = ["..", ".", "a/b", "/etc", "../../x", "a\0b", "a b", "a\nb", "\u{7f}"];

    #[test]
    fn a_file_name_stays_in_its_directory() {
        assert!(["burst0", "eth0.5", "...", "tx_bytes", "wlan-ä"].iter().all(|name| is_file_name(name)));
        assert!(HOSTILE.iter().all(|name| !is_file_name(name)) && !is_file_name(""));
        assert!(is_file_name(&"x".repeat(FILE_NAME_MAX)) && !is_file_name(&"x".repeat(FILE_NAME_MAX + 1)));
    }

    #[test]
    fn a_message_with_another_name_is_malformed() {
        for bad in HOSTILE {
            let counter = Counter { name: bad.into(), device: String::new(), value: 1 };
            let bytes = postcard::to_stdvec(&counter).expect("encoded");
            assert!(postcard::from_bytes::<Counter>(&bytes).is_err(), "{bad:?}");
            let gid = GidInfo { gid: [0; 16], ifname: bad.into(), ifindex: 1 };
            assert!(postcard::from_bytes::<GidInfo>(&postcard::to_stdvec(&gid).expect("encoded")).is_err(), "{bad:?}");
        }
        let good = Counter { name: "tx_bytes".into(), device: String::new(), value: 1 };
        assert_eq!(postcard::from_bytes::<Counter>(&postcard::to_stdvec(&good).expect("encoded")), Ok(good));
    }
}
