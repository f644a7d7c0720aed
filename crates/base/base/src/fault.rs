//! Injected failures: a test makes the n-th fallible step from now fail, to see that its failure changes nothing and harms no one
//! else.
//!
//! A fallible step is a system call or an allocation of a limited resource; the code asks [`fails`] or [`check`] just before it.
//! In builds without debug assertions both are constants, and the compiler removes them: no step fails there, and a test that
//! needs one is left out (`#[cfg(debug_assertions)]`). A feature of the crate, which only tests turn on, would have all crates
//! compiled twice.

use std::io;

#[cfg(debug_assertions)]
mod armed {
    use std::cell::Cell;

    thread_local! {
        /// Steps before the one that fails; `None`: none fails.
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
        /// Whether a step has failed since the last [`super::arm`].
        static FIRED: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets the step number `after` from now fail, counted from 0, on this thread.
    pub fn arm(after: u64) {
        LEFT.set(Some(after));
        FIRED.set(false);
    }

    /// Lets no more step fail. Returns whether one has failed.
    pub fn disarm() -> bool {
        LEFT.set(None);
        FIRED.replace(false)
    }

    /// Whether the next step fails.
    pub fn fails() -> bool {
        let Some(left) = LEFT.get() else { return false };
        LEFT.set(left.checked_sub(1));
        FIRED.set(FIRED.get() || left == 0);
        left == 0
    }
}

#[cfg(not(debug_assertions))]
mod armed {
    /// Does nothing: no step fails.
    pub const fn arm(_after: u64) {}

    /// False: no step has failed.
    pub const fn disarm() -> bool {
        false
    }

    /// Whether the next step fails.
    #[inline(always)]
    pub const fn fails() -> bool {
        false
    }
}

pub use armed::{arm, disarm, fails};

/// The next step, if it is a system call without a descriptor or memory left for it.
///
/// # Errors
/// EMFILE if the step fails.
#[inline]
pub fn check() -> io::Result<()> {
    /// Too many open files, on every architecture of Linux.
    const EMFILE: i32 = 24;
    if fails() { Err(io::Error::from_raw_os_error(EMFILE)) } else { Ok(()) }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_armed_step_fails() {
        assert!(!fails() && !disarm());
        arm(2);
        assert_eq!([fails(), fails(), fails(), fails()], [false, false, true, false]);
        assert!(disarm() && !disarm());
        arm(0);
        assert_eq!(check().expect_err("armed").raw_os_error(), Some(24));
        assert!(check().is_ok() && disarm());
    }
}
