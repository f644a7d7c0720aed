//! The user to whom an id was given, so that a user does not multiply its share.
//!
//! The kernel lets a user use the ids of a range (`/etc/subuid`, by `newuidmap`), as rootless containers do. A process with such
//! an id belongs to the account of the user to whom the range was given. Ranges of root, and of the user who runs the daemon, are
//! those of container managers: their containers are users of their own, which is for the caller to see.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Lines that are read of a file.
const LINES_MAX: usize = 4096;

/// Ids that a user may use beside its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SubordinateRange {
    owner: u32,
    first: u32,
    count: u32,
}

/// The files' state when they were read: device, inode, length, and time of the last change.
type FileState = Option<(u64, u64, u64, i64, i64)>;

/// The subordinate ids of all users. The files are read again when they have changed.
#[derive(Debug, Default)]
pub struct SubordinateIds {
    /// `/etc/subuid`; `None`: every id is a user.
    file: Option<PathBuf>,
    /// Names of users.
    passwd: PathBuf,
    ranges: Vec<SubordinateRange>,
    seen: [FileState; 2],
}

fn state(path: &Path) -> FileState {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

/// The fields of the lines of a file that has such lines.
fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().take(LINES_MAX).map(|line| line.split(':').map(str::trim).collect())
}

/// The ranges in the text of `/etc/subuid`. A user is a name of `/etc/passwd`, or a number; unknown ones have no range.
fn ranges(text: &str, passwd: &str) -> Vec<SubordinateRange> {
    let uid_of = |name: &str| {
        let by_name = || fields(passwd).find(|entry| entry.first() == Some(&name))?.get(2)?.parse().ok();
        name.parse().ok().or_else(by_name)
    };
    let range = |entry: Vec<&str>| {
        let [name, first, count] = entry[..] else { return None };
        Some(SubordinateRange { owner: uid_of(name)?, first: first.parse().ok()?, count: count.parse().ok()? })
    };
    fields(text).filter_map(range).collect()
}

impl SubordinateIds {
    /// The ids of a file like `/etc/subuid`; `None`: no id is another user's.
    pub fn new(file: Option<PathBuf>) -> SubordinateIds {
        SubordinateIds { file, passwd: "/etc/passwd".into(), ..SubordinateIds::default() }
    }

    /// The user to whom an id was given: the id itself if it is in no range. `complain` gets a sentence if a file that has
    /// changed cannot be read.
    pub fn owner_of(&mut self, uid: u32, complain: impl Fn(String)) -> u32 {
        self.refresh(complain);
        let has = |range: &&SubordinateRange| uid.checked_sub(range.first).is_some_and(|at| at < range.count);
        self.ranges.iter().find(has).map_or(uid, |range| range.owner)
    }

    fn refresh(&mut self, complain: impl Fn(String)) {
        let Some(file) = &self.file else { return };
        let now = [state(file), state(&self.passwd)];
        if now == self.seen {
            return;
        }
        let read = |path: &Path| match fs::read_to_string(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                complain(format!("{} cannot be read: {error}", path.display()));
                String::new()
            }
            text => text.unwrap_or_default(),
        };
        self.ranges = ranges(&read(file), &read(&self.passwd));
        self.seen = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/:/bin/sh\nbob:x:1002:1002::/:/bin/sh\n";

    #[test]
    fn an_id_in_a_range_is_its_owners() {
        let text = "alice:100000:65536\n1002:165536:65536\nghost:300000:10\n\nodd\nbob:x:1\nalice:400000:4294967295\n";
        let ids =
            |uid| SubordinateIds { ranges: ranges(text, PASSWD), ..SubordinateIds::default() }.owner_of(uid, drop);
        assert_eq!([100_000, 165_535, 165_536, 231_071].map(ids), [1001, 1001, 1002, 1002]);
        assert_eq!([99_999, 231_072, 300_000, 1001, 0].map(ids), [99_999, 231_072, 300_000, 1001, 0], "in no range");
        assert_eq!(ids(u32::MAX), 1001, "a length beyond the last id");
    }

    #[test]
    fn a_file_that_changes_is_read_again() {
        let file = std::env::temp_dir().join(format!("burst-subuid-{}", std::process::id()));
        let mut ids = SubordinateIds::new(Some(file.clone()));
        assert_eq!(ids.owner_of(100_000, drop), 100_000, "there is no file");
        fs::write(&file, "1001:100000:10\n").expect("written");
        assert_eq!(ids.owner_of(100_000, drop), 1001);
        fs::write(&file, "1001:100000:10\n1002:200000:10\n").expect("written");
        assert_eq!(ids.owner_of(200_000, drop), 1002);
        fs::remove_file(&file).expect("removed");
        assert_eq!(ids.owner_of(200_000, drop), 200_000);
        assert_eq!(SubordinateIds::new(None).owner_of(100_000, drop), 100_000);
    }
}
