//! Two hostile programs on a whole daemon (`burst_fuzz::world`). The input is a program of requests of any bytes, commands, work
//! requests, doorbells, writes anywhere into shared memory, and packets of a forger on the wire, who speaks for either device.
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
        if tape.byte() & 1 == 1 {
            world.join();
        }
        for _ in 0..ACTIONS_MAX {
            if tape.is_empty() {
                break;
            }
            world.step(&mut tape);
        }
        world.work();
        world.check_honest();
        world.end();
    }
);
