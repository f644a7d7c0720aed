//! What the proxies of one network namespace share: each has a mark of its own, and the settings that let servers'
//! answers come back are restored by the last proxy that needs them.
//!
//! Both are locks (flock) on files of a directory of root's, by the cookie of the namespace, which no other namespace
//! gets until the host starts again. The file of the settings holds what they were before the first proxy; a
//! janitor that was killed leaves it, and the next one takes the values from there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// Where the files are.
const DIRECTORY: &str = "/run/burst-proxy";

/// Settings of a namespace that are 1 while a proxy works there: a server's socket, and answers of the kernel such as
/// RST, take the mark of what they answer, and so come back to the proxy.
const SETTINGS: [&str; 3] =
    ["/proc/sys/net/ipv4/tcp_fwmark_accept", "/proc/sys/net/ipv4/fwmark_reflect", "/proc/sys/net/ipv6/fwmark_reflect"];

/// The settings that this kernel has.
fn present_settings() -> impl Iterator<Item = &'static str> {
    SETTINGS.into_iter().filter(|path| Path::new(path).exists())
}

/// A mark of this process in a namespace, and its use of the settings.
pub(super) struct Claim {
    cookie: u64,
    mark: u32,
    _mark: File,
    settings: File,
}

impl Claim {
    /// Claims a mark in the calling thread's namespace, waiting a while for an earlier janitor to finish, and switches
    /// the settings on.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn new(mark: u32) -> Result<Self, String> {
        let socket = crate::sys::tcp_socket(IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(|e| e.to_string())?;
        let cookie = crate::sys::namespace_cookie(&socket).map_err(|e| format!("SO_NETNS_COOKIE: {e}"))?;
        let directory = Path::new(DIRECTORY);
        let _mark = lock_mark(directory, cookie, mark)?;
        let settings = use_settings(directory, cookie, &|| present_settings().map(read_setting).collect())?;
        let claim = Self { cookie, mark, _mark, settings };
        if let Err(why) = present_settings().try_for_each(|path| write_setting(path, "1")) {
            claim.end()?;
            return Err(why);
        }
        Ok(claim)
    }

    /// Gives both back; the last proxy restores the settings.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn end(mut self) -> Result<(), String> {
        let remove = |name: String| {
            let path = Path::new(DIRECTORY).join(name);
            std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))
        };
        // While they are locked: a process that waits for a lock finds that the name is gone, and makes another file.
        let mut failed = Vec::from_iter(remove(format!("{}-{}", self.cookie, self.mark)).err());
        if let Some(before) = last_use(&mut self.settings)? {
            for (path, value) in before.lines().filter_map(|line| line.split_once(' ')) {
                failed.extend(write_setting(path, value).err());
            }
            failed.extend(remove(self.cookie.to_string()).err());
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }
}

fn read_setting(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    Ok(format!("{path} {}\n", text.trim()))
}

fn write_setting(path: &str, value: &str) -> Result<(), String> {
    std::fs::write(path, value).map_err(|e| format!("{path}: {e}"))
}

/// A file of the directory, which only this user may write.
fn open(directory: &Path, name: &str) -> Result<File, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
        Ok(()) | Err(_) => {}
    }
    let facts = std::fs::symlink_metadata(directory).map_err(failed)?;
    if !facts.is_dir() || facts.mode() & 0o022 != 0 || facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("{} must be a directory that only this user may write", directory.display()));
    }
    let path = directory.join(name);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    opened.map_err(|e| format!("{}: {e}", path.display()))
}

fn lock_mark(directory: &Path, cookie: u64, mark: u32) -> Result<File, String> {
    for _ in 0..250 {
        // Opened each time: its last owner removes it.
        let file = open(directory, &format!("{cookie}-{mark}"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_named(&file) => return Ok(file),
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => return Err(format!("the mark {mark} cannot be claimed: {e}")),
        }
    }
    Err(format!("another proxy takes connections in this network namespace with mark {mark}: choose another mark"))
}

/// Notes that this process needs the settings; the first one writes down `present`.
fn use_settings(directory: &Path, cookie: u64, present: &dyn Fn() -> Result<String, String>) -> Result<File, String> {
    let failed = |e: std::io::Error| format!("{}/{cookie}: {e}", directory.display());
    loop {
        let mut file = open(directory, &cookie.to_string())?;
        let first = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if first && is_named(&file) && file.metadata().map_err(failed)?.len() == 0 {
            file.write_all(present()?.as_bytes()).map_err(failed)?;
        }
        flock(&file, FlockOperation::LockShared).map_err(|e| failed(e.into()))?;
        // Otherwise the last user ended while this one waited.
        if is_named(&file) && file.metadata().map_err(failed)?.len() > 0 {
            return Ok(file);
        }
    }
}

/// Whether a file was not removed after it was opened.
fn is_named(file: &File) -> bool {
    file.metadata().is_ok_and(|facts| facts.nlink() > 0)
}

/// What the settings were before the first user, if this was the last one.
fn last_use(file: &mut File) -> Result<Option<String>, String> {
    match flock(&*file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(e) => return Err(format!("the settings' file cannot be locked: {e}")),
    }
    let mut text = String::new();
    let done = file.rewind().and_then(|()| file.read_to_string(&mut text)).and_then(|_| file.set_len(0));
    done.map_err(|e| format!("the settings' file: {e}"))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("burst-claim-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn the_last_user_gets_what_was_before_the_first() {
        let at = directory("settings");
        let present = |value: &'static str| move || Ok(format!("{value}\n"));
        let mut one = use_settings(&at, 1, &present("0")).unwrap();
        let mut two = use_settings(&at, 1, &present("1")).unwrap();
        assert_eq!(last_use(&mut one).unwrap(), None, "the other one still needs them");
        assert_eq!(last_use(&mut two).unwrap().unwrap(), "0\n");
        drop((one, two));
        // Killed, so that nothing is restored; the next one must not take 1 for what was before.
        drop(use_settings(&at, 1, &present("0")).unwrap());
        let mut next = use_settings(&at, 1, &present("1")).unwrap();
        assert_eq!(last_use(&mut next).unwrap().unwrap(), "0\n");
        std::fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn a_mark_of_a_namespace_has_one_owner() {
        let at = directory("mark");
        let held = lock_mark(&at, 1, 81).unwrap();
        let again = open(&at, "1-81").unwrap();
        assert!(is_named(&again));
        assert!(flock(&again, FlockOperation::NonBlockingLockExclusive).is_err());
        assert!(lock_mark(&at, 1, 82).is_ok() && lock_mark(&at, 2, 81).is_ok());
        std::fs::remove_file(at.join("1-81")).unwrap();
        drop(held);
        assert!(!is_named(&again) && flock(&again, FlockOperation::NonBlockingLockExclusive).is_ok());
        assert!(lock_mark(&at, 1, 81).is_ok(), "a new file");
        std::fs::remove_dir_all(at).unwrap();
    }
}
