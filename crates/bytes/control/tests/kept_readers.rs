//! Event pipes of a host inside a program keep a read end: alone in its process, because the setting is the process's.

use burst_control::events::{BACKLOG_MAX, EventPipe, EventSink, keep_readers};

#[test]
fn a_program_that_has_closed_its_end_gets_no_signal_and_costs_no_more_than_one_that_does_not_read() {
    keep_readers();
    let (pipe, read) = EventPipe::new().expect("a pipe");
    drop(read);
    // Without a reader the first write would fail, and nothing would wait for room.
    let lost = (0..BACKLOG_MAX + 20_000).filter(|_| pipe.write(&[0; 8]).is_err()).count();
    assert!(pipe.has_backlog() && lost > 0);
}
