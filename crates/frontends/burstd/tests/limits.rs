//! Limits of a device: the daemon keeps what `ibv_query_device` reports.

mod common;

use burst_base::verbs::MwType;
use burst_control::{Client, ControlError, Refusal, Request, Response};
use common::Daemon;

fn ask(client: &mut Client, request: &Request) -> Result<Response, Refusal> {
    match client.call(request, &[]) {
        Ok(reply) => Ok(reply.response),
        Err(ControlError::Refused { errno, sentence }) => Err(Refusal { errno, sentence }),
        Err(error) => panic!("{request:?}: {error}"),
    }
}

#[test]
fn a_device_has_max_mw_memory_windows_and_no_more() {
    let daemon = Daemon::start("windows", 1);
    let mut client = daemon.connect();
    let Ok(Response::Context { device, .. }) = ask(&mut client, &Request::OpenContext { device: 0 }) else {
        panic!("a context");
    };
    let Ok(Response::Handle(pd)) = ask(&mut client, &Request::AllocPd) else { panic!("a protection domain") };
    let alloc = Request::AllocMw { pd, mw_type: MwType::Two };
    let max = device.limits.max_mw;
    let mut last = 0;
    for number in 0..max {
        let Ok(Response::Mw { mw, .. }) = ask(&mut client, &alloc) else { panic!("window {number} of {max}") };
        last = mw;
    }
    let refusal = ask(&mut client, &alloc).expect_err("one more than max_mw");
    assert_eq!(refusal.errno, libc::ENOMEM);
    assert!(refusal.sentence.contains("memory windows") && refusal.sentence.contains("max_mw"), "{}", refusal.sentence);
    ask(&mut client, &Request::DeallocMw { mw: last }).expect("deallocated");
    ask(&mut client, &alloc).expect("there is room for one again");
}
