//! Completion events: delivery, and that destruction waits for acknowledgements.

use crate::pair::*;
use burst_ibverbs::sys::*;
use burst_ibverbs::{channel, cq, event, poll, qp};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn readable(fd: i32, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) == 1 }
}

#[test]
fn an_armed_cq_makes_one_event_and_destruction_waits_for_its_ack() {
    let Some(open) = Open::new() else { return };
    // SAFETY: an open context.
    let channel = unsafe { channel::ibv_create_comp_channel(open.context) };
    let cq = open.cq_on(8, channel);
    let (a, b) = open.pair(cq);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    let write = || assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0, 0);
    // SAFETY: live objects throughout.
    unsafe {
        assert_eq!(channel::ibv_destroy_comp_channel(channel), libc::EBUSY);
        let fd = (*channel).fd;
        write();
        complete_all(cq, 1);
        assert!(!readable(fd, 50), "not armed");
        assert_eq!(poll::req_notify_cq(cq, 0), 0);
        write();
        assert!(readable(fd, 60_000));
        let (mut got, mut cq_context) = (null_mut(), null_mut());
        assert_eq!(event::ibv_get_cq_event(channel, &mut got, &mut cq_context), 0);
        assert_eq!(got, cq);
        complete_all(cq, 1);
        write();
        complete_all(cq, 1);
        assert!(!readable(fd, 50), "armed once");
        assert_eq!(qp::ibv_destroy_qp(a), 0);
        assert_eq!(qp::ibv_destroy_qp(b), 0);
        static ACKED: AtomicBool = AtomicBool::new(false);
        let address = cq as usize;
        let acker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            ACKED.store(true, Ordering::SeqCst);
            event::ibv_ack_cq_events(address as *mut _, 1);
        });
        assert_eq!(cq::ibv_destroy_cq(cq), 0);
        assert!(ACKED.load(Ordering::SeqCst), "destroyed before the acknowledgement");
        acker.join().unwrap();
        assert_eq!(channel::ibv_destroy_comp_channel(channel), 0);
    }
}

#[test]
fn an_empty_non_blocking_channel_returns_eagain() {
    let Some(open) = Open::new() else { return };
    // SAFETY: live objects throughout.
    unsafe {
        let channel = channel::ibv_create_comp_channel(open.context);
        libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        let (mut cq, mut cq_context) = (null_mut(), null_mut());
        assert_eq!(event::ibv_get_cq_event(channel, &mut cq, &mut cq_context), -1);
        assert_eq!(burst_ibverbs::boundary::errno().0, libc::EAGAIN);
        libc::fcntl((*open.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        let mut event = ibv_async_event::default();
        assert_eq!(event::ibv_get_async_event(open.context, &mut event), -1);
        assert_eq!(burst_ibverbs::boundary::errno().0, libc::EAGAIN);
        assert_eq!(channel::ibv_destroy_comp_channel(channel), 0);
    }
}
