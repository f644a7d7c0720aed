//! A directory that is written through its descriptor: nothing outside is reached, whatever other users do meanwhile.
//!
//! Every step is one name relative to an open directory, and follows no symbolic link (`O_NOFOLLOW`); a file is made new
//! (`O_EXCL`). So a link that another user has put anywhere makes the step fail and leads to no other place.

use burst_control::names::is_file_name;
use rustix::fs::{CWD, Mode, OFlags, fstat, mkdirat, openat, symlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Flags of every directory that is opened here.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Permission bits with which others could change a directory.
const OTHERS_MAY_WRITE: u32 = 0o022;

/// An open directory.
#[derive(Debug)]
pub struct OpenDirectory(OwnedFd);

impl OpenDirectory {
    /// Opens a directory. The last name of the path must not be a symbolic link; those before it are trusted.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<OpenDirectory> {
        Ok(OpenDirectory(openat(CWD, path, DIRECTORY, Mode::empty())?))
    }

    /// Opens a directory in this one, and makes it if there is none.
    ///
    /// # Errors
    /// The system's; ENOTDIR or ELOOP for a symbolic link of this name.
    pub fn enter(&self, name: &str) -> io::Result<OpenDirectory> {
        check(name)?;
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(OpenDirectory(openat(&self.0, name, DIRECTORY, Mode::empty())?))
    }

    /// Fails if another user than this process's owns the directory or may change it.
    ///
    /// # Errors
    /// EPERM.
    pub fn check_own(&self) -> io::Result<()> {
        let stat = fstat(&self.0)?;
        let own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & OTHERS_MAY_WRITE == 0;
        if own { Ok(()) } else { Err(Errno::PERM.into()) }
    }

    /// Makes a file with a line of text, and the directories on the way. `path` has no `..`.
    ///
    /// # Errors
    /// The system's; EEXIST if there is anything of this name.
    pub fn put(&self, path: &str, text: &str) -> io::Result<()> {
        self.below(path, |directory, name| directory.make(name)?.write_all(format!("{text}\n").as_bytes()))
    }

    /// Replaces the line of a file that is there by another. A reader sees one of both, unless the new one is shorter.
    ///
    /// # Errors
    /// The system's; ENOENT if there is no such file.
    pub fn rewrite(&self, path: &str, text: &str) -> io::Result<()> {
        self.below(path, |directory, name| {
            check(name)?;
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file: File = openat(&directory.0, name, flags, Mode::empty())?.into();
            let line = format!("{text}\n");
            if file.metadata()?.len() > line.len() as u64 {
                file.set_len(line.len() as u64)?;
            }
            file.write_all_at(line.as_bytes(), 0)
        })
    }

    /// Makes a symbolic link, and the directories on the way.
    ///
    /// # Errors
    /// As [`OpenDirectory::put`].
    pub fn link(&self, path: &str, target: &Path) -> io::Result<()> {
        self.below(path, |directory, name| Ok(symlinkat(target, &directory.0, name)?))
    }

    /// Makes a file.
    ///
    /// # Errors
    /// As [`OpenDirectory::put`].
    pub fn make(&self, name: &str) -> io::Result<File> {
        check(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::from_raw_mode(0o644))?.into())
    }

    /// Opens a file to read it.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, name: &str) -> io::Result<File> {
        check(name)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// Runs `step` in the directory of the last name of `path`.
    fn below<T>(&self, path: &str, step: impl FnOnce(&OpenDirectory, &str) -> io::Result<T>) -> io::Result<T> {
        let Some((directories, name)) = path.rsplit_once('/') else { return step(self, path) };
        let mut at = OpenDirectory(self.0.try_clone()?);
        for directory in directories.split('/') {
            at = at.enter(directory)?;
        }
        step(&at, name)
    }

    /// A path that leads to this directory in this process, whatever becomes of its name.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// EINVAL for a name that could leave the directory.
fn check(name: &str) -> io::Result<()> {
    if is_file_name(name) { Ok(()) } else { Err(Errno::INVAL.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("burst-directory-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("made");
        path
    }

    #[test]
    fn files_and_links_are_made_with_their_directories() {
        let place = scratch("made");
        let directory = OpenDirectory::open(&place).expect("opened");
        directory.put("ports/1/state", "4: ACTIVE").expect("written");
        directory.link("device/net/eth0", Path::new("/sys/class/net/eth0")).expect("linked");
        assert_eq!(fs::read_to_string(place.join("ports/1/state")).expect("read"), "4: ACTIVE\n");
        assert_eq!(fs::read_to_string(directory.path().join("ports/1/state")).expect("read"), "4: ACTIVE\n");
        assert_eq!(fs::read_link(place.join("device/net/eth0")).expect("a link"), Path::new("/sys/class/net/eth0"));
        assert!(directory.put("ports/1/state", "again").is_err(), "only new files");
        for text in ["5: ACTIVE_DEFER", "1: DOWN"] {
            directory.rewrite("ports/1/state", text).expect("rewritten");
            assert_eq!(fs::read_to_string(place.join("ports/1/state")).expect("read"), format!("{text}\n"));
        }
        assert!(directory.rewrite("ports/1/rate", "x").is_err(), "only files that are there");
    }

    #[test]
    fn a_link_of_another_user_leads_nowhere() {
        let (place, elsewhere) = (scratch("planted"), scratch("elsewhere"));
        symlink(&elsewhere, place.join("ports")).expect("linked");
        symlink(elsewhere.join("file"), place.join("node_guid")).expect("linked");
        let directory = OpenDirectory::open(&place).expect("opened");
        assert!(directory.put("ports/1/state", "x").is_err() && directory.put("node_guid", "x").is_err());
        assert!(directory.read("node_guid").is_err());
        assert_eq!(fs::read_dir(&elsewhere).expect("read").count(), 0);
        symlink(&elsewhere, place.join("root")).expect("linked");
        assert!(OpenDirectory::open(&place.join("root")).is_err());
    }

    #[test]
    fn no_name_leaves_the_directory() {
        let directory = OpenDirectory::open(&scratch("names")).expect("opened");
        for path in ["..", "../x", "a/../../x", "/etc/x", "", "a//b", ".", &"x".repeat(300)] {
            assert!(directory.put(path, "x").is_err() && directory.enter(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_directory_that_others_may_change_is_not_own() {
        use std::os::unix::fs::PermissionsExt;
        let place = scratch("own");
        let directory = OpenDirectory::open(&place).expect("opened");
        for (mode, own) in [(0o755, true), (0o775, false), (0o1777, false)] {
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).expect("set");
            assert_eq!(directory.check_own().is_ok(), own, "{mode:o}");
        }
    }
}
