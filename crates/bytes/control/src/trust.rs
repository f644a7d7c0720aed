//! Which daemons a program talks to: its own user's and root's.
//!
//! A daemon reads and writes all memory that a program registers, so a socket that another user has put at one of the usual
//! places (`/tmp/burst-UID`) must not get a word. Before a program connects, it looks at the socket's file and directory
//! ([`TrustedUsers::check_file`]); before it says hello, it asks the kernel which user listens ([`TrustedUsers::check_peer`]).
//! The second check decides: the first one only finds traps that are not sprung yet.
//!
//! In a user namespace the kernel shows all users without a number there as one (usually 65534), the host's root among them. Such
//! a socket is refused, because its owner is unknown, unless [`TRUST_ENV`] lists that number. `burst run` does so itself
//! for a daemon that it has checked before it made the namespace. A program with more rights than its user (set-user-ID, file
//! capabilities) ignores the variable.

use crate::ControlError;
use burst_peer::process::is_secure_execution;
use burst_peer::{credentials, namespace};
use std::fs::Metadata;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Environment variable with user ids, separated by commas: daemons of these users are trusted too.
pub const TRUST_ENV: &str = "BURST_TRUST_SOCKET_OF";
/// Permission bits of a directory in which every user may replace files.
const OTHERS_MAY_WRITE: u32 = 0o002;
/// In a directory with this bit only a file's owner may replace it.
const STICKY: u32 = 0o1000;

/// The users whose daemons a program trusts.
#[derive(Clone, Debug)]
pub struct TrustedUsers {
    /// The effective user of this process.
    own: u32,
    /// User ids in [`TRUST_ENV`].
    listed: Vec<u32>,
    /// The user id of all users without a number in this user namespace.
    unmapped: Option<u32>,
}

impl TrustedUsers {
    /// The users that this process trusts.
    pub fn of_this_process() -> TrustedUsers {
        let listed = std::env::var(TRUST_ENV).ok().filter(|_| !is_secure_execution());
        TrustedUsers {
            own: rustix::process::geteuid().as_raw(),
            listed: listed
                .iter()
                .flat_map(|list| list.split(','))
                .filter_map(|word| word.trim().parse().ok())
                .collect(),
            unmapped: namespace::unmapped_uid(),
        }
    }

    fn trusts(&self, uid: u32) -> bool {
        let known = Some(uid) != self.unmapped && (uid == 0 || uid == self.own);
        known || self.listed.contains(&uid)
    }

    /// Checks the file of a socket and its directory. A file that cannot be found is not refused: to connect fails then.
    ///
    /// # Errors
    /// [`ControlError::Untrusted`]: another user owns the socket, a link to it, or its directory, or may replace it.
    pub fn check_file(&self, path: &Path) -> Result<(), ControlError> {
        self.check_entry(path)?;
        // A link: its target is checked as well.
        match std::fs::canonicalize(path) {
            Ok(target) if target != path => self.check_entry(&target),
            _ => Ok(()),
        }
    }

    fn check_entry(&self, path: &Path) -> Result<(), ControlError> {
        let Ok(file) = path.symlink_metadata() else { return Ok(()) };
        self.check_owner(path, &file)?;
        let directory = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(of) = directory.metadata() else { return Ok(()) };
        self.check_owner(directory, &of)?;
        if of.mode() & OTHERS_MAY_WRITE != 0 && of.mode() & STICKY == 0 {
            return Err(ControlError::Untrusted(format!(
                "{} is in {}, where every user may replace it: chmod o-w {1}, or move the socket",
                path.display(),
                directory.display()
            )));
        }
        Ok(())
    }

    fn check_owner(&self, path: &Path, of: &Metadata) -> Result<(), ControlError> {
        if self.trusts(of.uid()) {
            return Ok(());
        }
        Err(ControlError::Untrusted(format!("{} belongs to {}", path.display(), self.why_not(of.uid()))))
    }

    /// Checks the user who listens at the other end of a connected socket.
    ///
    /// # Errors
    /// [`ControlError::Untrusted`]: it is another user. [`ControlError::Io`]: the kernel does not tell.
    pub fn check_peer(&self, socket: BorrowedFd<'_>, path: &Path) -> Result<(), ControlError> {
        let uid = credentials::of(socket)?.uid;
        if self.trusts(uid) {
            return Ok(());
        }
        Err(ControlError::Untrusted(format!("the daemon behind {} runs as {}", path.display(), self.why_not(uid))))
    }

    /// Describes a user who is not trusted, and the cure.
    fn why_not(&self, uid: u32) -> String {
        if Some(uid) == self.unmapped {
            return format!(
                "a user who has no number in this user namespace (shown as {uid}): that may be the host's root or any other user. If \
                 the daemon is one that you trust, set {TRUST_ENV}={uid}"
            );
        }
        format!(
            "user {uid}, who is neither root nor this program's user {}, and a daemon can read and write all memory that a program \
             registers: start a daemon of your own (burst run, or burstd with --socket), or set {TRUST_ENV}={uid} if you trust \
             that user",
            self.own
        )
    }
}

/// The user id that owns a socket, if it stands for all users without a number in this user namespace: programs here need it in
/// [`TRUST_ENV`].
pub fn unmapped_owner(path: &Path) -> Option<u32> {
    let owner = path.metadata().ok()?.uid();
    namespace::unmapped_uid().filter(|uid| *uid == owner)
}

/// The value of [`TRUST_ENV`] with one more user.
pub fn with_user(list: Option<&str>, uid: u32) -> String {
    list.filter(|l| !l.is_empty()).map_or_else(|| uid.to_string(), |l| format!("{l},{uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    fn users(own: u32, listed: &[u32], unmapped: Option<u32>) -> TrustedUsers {
        TrustedUsers { own, listed: listed.to_vec(), unmapped }
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("burst-trust-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("made");
        path
    }

    #[test]
    fn only_root_and_the_own_user_are_trusted() {
        let of = users(1001, &[7], None);
        assert!([0, 1001, 7].iter().all(|uid| of.trusts(*uid)));
        assert!([1002, 65_534, u32::MAX].iter().all(|uid| !of.trusts(*uid)));
    }

    #[test]
    fn a_user_without_a_number_is_trusted_only_if_listed() {
        assert!(!users(1001, &[], Some(65_534)).trusts(65_534));
        assert!(!users(65_534, &[], Some(65_534)).trusts(65_534), "the own user has no number either");
        assert!(users(1001, &[65_534], Some(65_534)).trusts(65_534));
        assert!(users(65_534, &[], None).trusts(65_534), "in the initial namespace it is one user's number");
        let why = users(1001, &[], Some(65_534)).why_not(65_534);
        assert!(why.contains("no number") && why.contains("BURST_TRUST_SOCKET_OF=65534"), "{why}");
    }

    #[test]
    fn a_file_of_another_user_is_refused_and_named() {
        let file = scratch("file").join("burstd.sock");
        fs::write(&file, "").expect("written");
        let own = fs::metadata(&file).expect("there").uid();
        users(own, &[], None).check_file(&file).expect("the own user's");
        // As another user who trusts neither this one nor, if the test runs as root, root.
        let other = TrustedUsers { own: own + 1, listed: Vec::new(), unmapped: Some(own) };
        let why = other.check_file(&file).expect_err("another user's").to_string();
        assert!(why.contains(file.to_str().expect("text")) && why.contains("BURST_TRUST_SOCKET_OF"), "{why}");
        users(own, &[], None).check_file(Path::new("/nowhere/at/all")).expect("to connect fails, not this");
    }

    #[test]
    fn a_directory_in_which_all_may_replace_files_is_refused() {
        let place = scratch("open");
        let (file, link) = (place.join("burstd.sock"), scratch("links").join("link"));
        fs::write(&file, "").expect("written");
        symlink(&file, &link).expect("linked");
        let own = users(fs::metadata(&file).expect("there").uid(), &[], None);
        for (mode, fine) in [(0o755, true), (0o777, false), (0o1777, true), (0o775, true)] {
            fs::set_permissions(&place, Permissions::from_mode(mode)).expect("set");
            assert_eq!(own.check_file(&file).is_ok(), fine, "{mode:o}");
            assert_eq!(own.check_file(&link).is_ok(), fine, "{mode:o} through a link");
        }
    }

    #[test]
    fn a_socket_that_is_not_there_has_no_owner() {
        assert_eq!(unmapped_owner(Path::new("/nowhere/at/all")), None);
    }

    #[test]
    fn the_list_grows() {
        assert_eq!(
            (with_user(None, 5), with_user(Some(""), 5), with_user(Some("1,2"), 5)),
            ("5".into(), "5".into(), "1,2,5".into())
        );
    }
}
