//! Check of the kernel's scheduling between the daemon and programs that poll. A bad setting costs speed only.

use super::Finding;
use std::fs::read_to_string;

/// The sysctl of autogroups.
const SWITCH: &str = "kernel.sched_autogroup_enabled";
/// With more processors than these a polling program rarely delays the daemon.
const FEW: usize = 4;
/// `/proc/PID/cgroup` of a process in the root group: only these have autogroups.
const ROOT_GROUP: &str = "0::/";

/// Autogroup of a process: name and nice value in `/proc/PID/autogroup`, and whether the process is in the root control group.
struct AutoGroup {
    auto: String,
    nice: i32,
    root: bool,
}

impl AutoGroup {
    fn of(process: &str) -> Option<AutoGroup> {
        let auto = read_to_string(format!("/proc/{process}/autogroup")).ok()?;
        // "/autogroup-12 nice 0"
        let mut words = auto.split_whitespace();
        let name = words.next()?.to_owned();
        let nice = words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        let groups = read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        Some(AutoGroup { auto: name, nice, root: groups.lines().any(|line| line == ROOT_GROUP) || groups.is_empty() })
    }
}

/// Warns if a program that polls delays the daemon although it yields, because the kernel shares processors by autogroup, and the
/// daemon could not take the larger share.
pub fn check(daemon: Option<u32>) -> Finding {
    let Some(daemon) = daemon else { return Finding::Skip("no daemon".to_owned()) };
    let enabled =
        read_to_string(format!("/proc/sys/{}", SWITCH.replace('.', "/"))).is_ok_and(|text| text.trim() == "1");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    judge(enabled, processors, AutoGroup::of("self"), AutoGroup::of(&daemon.to_string()))
}

fn judge(enabled: bool, processors: usize, own: Option<AutoGroup>, daemon: Option<AutoGroup>) -> Finding {
    let seen = format!("{processors} processors");
    match (own, daemon) {
        (Some(own), Some(daemon))
            if enabled
                && processors <= FEW
                && own.root
                && daemon.root
                && own.auto != daemon.auto
                && daemon.nice >= own.nice =>
        {
            Finding::Hint(
                format!("{seen}, and the kernel shares them by session: programs that poll slow the daemon down"),
                format!("let burstd start in a session of its own with CAP_SYS_NICE, or sysctl {SWITCH}=0"),
            )
        }
        _ => Finding::Ok(seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(auto: &str, root: bool) -> Option<AutoGroup> {
        Some(AutoGroup { auto: auto.to_owned(), nice: 0, root })
    }

    #[test]
    fn only_sessions_that_compete_for_few_processors_are_warned_of() {
        let hint =
            |enabled, processors, own, daemon| matches!(judge(enabled, processors, own, daemon), Finding::Hint(..));
        assert!(hint(true, 2, group("/autogroup-1", true), group("/autogroup-2", true)));
        assert!(!hint(false, 2, group("/autogroup-1", true), group("/autogroup-2", true)));
        assert!(!hint(true, 64, group("/autogroup-1", true), group("/autogroup-2", true)));
        assert!(!hint(true, 2, group("/autogroup-1", true), group("/autogroup-1", true)));
        assert!(!hint(true, 2, group("/autogroup-1", true), group("/autogroup-2", false)));
        assert!(!hint(true, 2, None, group("/autogroup-2", true)));
        let larger = Some(AutoGroup { auto: "/autogroup-2".to_owned(), nice: -5, root: true });
        assert!(!hint(true, 2, group("/autogroup-1", true), larger), "the daemon has the larger share");
    }

    #[test]
    fn our_own_group_can_be_read() {
        // Kernels without CONFIG_SCHED_AUTOGROUP have no such file; to a process in no autogroup it reads empty.
        let line = read_to_string("/proc/self/autogroup").unwrap_or_default();
        assert_eq!(AutoGroup::of("self").is_some(), line.starts_with("/autogroup-"), "{line:?}");
    }
}
