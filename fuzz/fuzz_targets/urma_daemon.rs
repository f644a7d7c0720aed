//! Sequences of URMA on a whole daemon (`burst_fuzz::world`): posts of both programs, calls for their objects, ends and new
//! beginnings of programs, time, and packets that a forger has seen, changed and sends again, also hundreds at once.
#![no_main]

use burst_fuzz::Tape;
use burst_fuzz::world::{ACTIONS_MAX, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        // SAFETY: before there is a second thread; as in every Rust program, writes to a pipe without reader fail.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    },
    |data: &[u8]| {
        let mut tape = Tape(data);
        let mut world = World::new();
        world.join();
        for _ in 0..ACTIONS_MAX {
            if tape.is_empty() {
                break;
            }
            world.urma_step(&mut tape);
        }
        world.work();
        world.check_honest();
        world.end();
    }
);
