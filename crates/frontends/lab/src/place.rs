//! Where the lab keeps its files.
//!
//! Sockets, logs and the task in hand are in `$BURST_LAB_DIR`, else `$XDG_RUNTIME_DIR/burst-lab`, else `/tmp/burst-lab-UID`: a
//! directory of this user alone, with a short name because the names of sockets are. The list of solved exercises outlives a
//! reboot where it can be written: `$XDG_STATE_HOME/burst/lab` or `~/.local/state/burst/lab`.

use crate::task::LabTask;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Variable that names another directory.
const PLACE_ENV: &str = "BURST_LAB_DIR";
/// Longest name of the directory: with `/X.sock` it must fit the address of a socket.
const PLACE_BYTES_MAX: usize = 90;

/// The directory of the lab, held by one `burst lab` at a time.
pub struct LabPlace {
    directory: PathBuf,
    progress: PathBuf,
    _lock: OwnedFd,
}

impl LabPlace {
    /// Opens the directory, makes it if it is not there, and waits until no other `burst lab` uses it.
    ///
    /// # Errors
    /// A sentence.
    pub fn open() -> Result<LabPlace, String> {
        let directory = chosen()?;
        make(&directory)?;
        let lock = locked(&directory.join("lock"))?;
        let progress = progress_file().unwrap_or_else(|| directory.join("solved"));
        Ok(LabPlace { directory, progress, _lock: lock })
    }

    /// A file of the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The task in hand, if there is one.
    pub fn task(&self) -> Option<LabTask> {
        postcard::from_bytes(&std::fs::read(self.file("task")).ok()?).ok()
    }

    /// Keeps the task.
    ///
    /// # Errors
    /// A sentence.
    pub fn keep(&self, task: &LabTask) -> Result<(), String> {
        let path = self.file("task");
        let bytes = postcard::to_stdvec(task).map_err(|e| e.to_string())?;
        std::fs::write(&path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    /// Forgets the task.
    pub fn forget(&self) {
        let _ = std::fs::remove_file(self.file("task"));
    }

    /// Names of the solved exercises.
    pub fn solved(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.progress).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Adds an exercise to the solved ones. Not being able to note it spoils nothing: the list is a convenience.
    pub fn note_solved(&self, name: &str) {
        let mut solved = self.solved();
        if !solved.iter().any(|known| known == name) {
            solved.push(name.to_owned());
            let _ = std::fs::write(&self.progress, solved.join("\n") + "\n");
        }
    }
}

fn chosen() -> Result<PathBuf, String> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let runtime = || named("XDG_RUNTIME_DIR").filter(|path| path.is_dir()).map(|path| path.join("burst-lab"));
    let uid = rustix::process::geteuid().as_raw();
    let path = named(PLACE_ENV).or_else(runtime).unwrap_or_else(|| format!("/tmp/burst-lab-{uid}").into());
    let path = std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    match path.as_os_str().len() <= PLACE_BYTES_MAX {
        true => Ok(path),
        false => {
            Err(format!("{} is too long for the name of a socket: set {PLACE_ENV} to a shorter one", path.display()))
        }
    }
}

/// Makes the directory; refuses one of another user, who could put files there.
fn make(directory: &Path) -> Result<(), String> {
    let name = directory.display();
    let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(directory);
    made.map_err(|e| format!("cannot make {name}: {e}: set {PLACE_ENV} to a directory that can be written"))?;
    let meta = directory.symlink_metadata().map_err(|e| format!("{name}: {e}"))?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("{name} belongs to another user: set {PLACE_ENV} to a directory of your own"));
    }
    Ok(())
}

fn locked(path: &Path) -> Result<OwnedFd, String> {
    let say = |e: rustix::io::Errno| format!("cannot lock {}: {e}", path.display());
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(say)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(say)?;
    Ok(file)
}

/// The file of solved exercises, if the user has a directory for such files.
fn progress_file() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if named(PLACE_ENV).is_some() {
        return None;
    }
    let state = named("XDG_STATE_HOME").or_else(|| named("HOME").map(|own| own.join(".local/state")))?;
    let directory = state.join("burst");
    std::fs::create_dir_all(&directory).ok()?;
    let path = directory.join("lab");
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    opened.ok().map(|_| path)
}
