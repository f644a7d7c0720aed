//! This process's user namespace: which users it can tell apart.
//!
//! The kernel shows a user that has no number in this namespace as the overflow user (`/proc/sys/kernel/overflowuid`, usually
//! 65534). All such users look alike, the host's root among them. Only in the initial namespace, where every user has a number,
//! is that number one user's.

/// Map of the initial user namespace: every user id stands for itself.
const IDENTITY: [u64; 3] = [0, 0, 4_294_967_295];
/// The overflow user where `/proc` does not tell.
const OVERFLOW_UID: u32 = 65_534;

/// The user id that stands for all users without a number in this process's user namespace; `None` in the initial one.
pub fn unmapped_uid() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if is_identity(&map) { None } else { Some(overflow_uid()) }
}

/// The kernel's number for users that have none.
fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(OVERFLOW_UID)
}

fn is_identity(map: &str) -> bool {
    let mut lines = map.lines();
    let first =
        lines.next().map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect::<Vec<u64>>());
    first.as_deref() == Some(&IDENTITY) && lines.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_map_of_the_initial_namespace_tells_all_users_apart() {
        assert!(is_identity("         0          0 4294967295\n"));
        for other in ["", "0 0 1\n", "0 100000 65536\n", "0 0 4294967295\n5 5 1\n", "1000 1000 1\n", "x 0 4294967295\n"]
        {
            assert!(!is_identity(other), "{other:?}");
        }
    }
}
