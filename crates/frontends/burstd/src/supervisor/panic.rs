//! What a panicking daemon leaves for its supervisor: place, thread, message and backtrace, in a memfd that the supervisor holds.

use rustix::fs::{MemfdFlags, memfd_create};
use std::backtrace::Backtrace;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes the first panic of this process to a memfd, from now on, and returns a duplicate for the supervisor.
///
/// # Errors
/// The system's.
pub fn record_panics() -> io::Result<OwnedFd> {
    let file = File::from(memfd_create("burst-panic", MemfdFlags::CLOEXEC)?);
    let duplicate = file.as_fd().try_clone_to_owned()?;
    let print = std::panic::take_hook();
    let written = AtomicBool::new(false);
    std::panic::set_hook(Box::new(move |info| {
        if !written.swap(true, Ordering::Relaxed) {
            // A panic that cannot be recorded is still printed.
            let _ = file.write_all_at(describe(info).as_bytes(), 0);
        }
        print(info);
    }));
    Ok(duplicate)
}

/// The first line names the place and the thread, the second one the message.
fn describe(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
    let payload = info.payload();
    let formatted = payload.downcast_ref::<String>().map(String::as_str);
    let message = formatted.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    format!("panic at {place} in thread {thread}\n{message}\n\n{}", Backtrace::force_capture())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::report::read_details;

    #[test]
    fn the_first_panic_leaves_place_thread_message_and_backtrace() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let record = record_panics().expect("a memfd");
        for message in ["the first", "the second"] {
            let thread = std::thread::Builder::new().name("worker-7".into());
            let ended = thread.spawn(move || panic!("{message}")).expect("a thread").join();
            assert!(ended.is_err());
        }
        std::panic::set_hook(before);
        let details = read_details(record);
        let mut lines = details.lines();
        let place = lines.next().expect("a line");
        assert!(place.starts_with("panic at ") && place.contains("panic.rs:") && place.ends_with("in thread worker-7"));
        assert_eq!((lines.next(), lines.next()), (Some("the first"), Some("")));
        assert!(lines.next().is_some_and(|line| line.contains("0:")), "a backtrace");
    }
}
