//! What a program sees at the last region of a device (`max_mr`), and at that of its user's share: ENOMEM for one more, and
//! nothing else changes, for it and for others.
mod common;

use burst_control::{Refusal, Request, Response};
use burst_host::Host;
use burst_host::limits::LIMITS;
use common::{Program, host};

/// Root may use everything; a user, a share.
const ROOT: u32 = 0;
const USER: u32 = 1001;
const BYSTANDER: u32 = 1002;
/// Regions of the other program.
const OTHERS: u32 = 5;
/// Part of the device that a user may have, in percent.
const SHARE: u8 = 5;

fn register(program: &mut Program, host: &mut Host) -> Result<(u32, u32), Refusal> {
    let region =
        Request::RegMr { pd: program.pd, addr: 0, len: 0, iova: 0, access: 1, pieces: Vec::new(), replaces: None };
    match program.ask(host, region)? {
        Response::Mr { mr, lkey, .. } => Ok((mr, lkey)),
        other => panic!("{other:?}"),
    }
}

/// Registers until it is refused.
fn register_all(program: &mut Program, host: &mut Host) -> (Vec<(u32, u32)>, Refusal) {
    let mut made = Vec::new();
    loop {
        match register(program, host) {
            Ok(region) => made.push(region),
            Err(refusal) => return (made, refusal),
        }
    }
}

fn deregister(program: &mut Program, host: &mut Host, mr: u32) {
    program.ask(host, Request::DeregMr { mr }).unwrap_or_else(|refusal| panic!("{}", refusal.sentence));
}

#[test]
fn all_regions_that_are_offered_can_be_made_and_one_more_is_refused() {
    let mut host = host(SHARE);
    let mut bystander = Program::start(&mut host, BYSTANDER).expect("a program");
    let theirs: Vec<_> = (0..OTHERS).map(|_| register(&mut bystander, &mut host).expect("a region")).collect();
    let mut greedy = Program::start(&mut host, ROOT).expect("a program");
    let (mut own, refusal) = register_all(&mut greedy, &mut host);
    assert_eq!(own.len() as u32, LIMITS.max_mr - OTHERS, "{}", refusal.sentence);
    assert!(refusal.errno == libc::ENOMEM && refusal.sentence.contains("max_mr"), "{}", refusal.sentence);
    let mut keys: Vec<u32> = own.iter().chain(&theirs).map(|(_, lkey)| *lkey).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len() as u32, LIMITS.max_mr, "each has a key of its own");
    // Refused again, also to the other program, for as long as there are so many.
    for program in [&mut greedy, &mut bystander] {
        for _ in 0..3 {
            assert_eq!(register(program, &mut host).map_err(|refusal| refusal.errno), Err(libc::ENOMEM));
        }
    }
    // A region that ends makes room for one.
    for round in 0..3 {
        let (mr, _) = own.swap_remove(round * 1000);
        deregister(&mut greedy, &mut host, mr);
        own.push(register(&mut greedy, &mut host).expect("a region"));
        assert!(register(&mut greedy, &mut host).is_err());
    }
    // Nothing was lost: all are there, and end once.
    own.into_iter().for_each(|(mr, _)| deregister(&mut greedy, &mut host, mr));
    theirs.iter().for_each(|(mr, _)| deregister(&mut bystander, &mut host, *mr));
    assert!(register(&mut bystander, &mut host).is_ok());
    greedy.end(&mut host);
    bystander.end(&mut host);
    assert!(common::is_all_given_back(&host));
}

#[test]
fn a_user_at_its_share_is_refused_and_others_are_not() {
    let mut host = host(SHARE);
    let mut greedy = Program::start(&mut host, USER).expect("a program");
    let (own, refusal) = register_all(&mut greedy, &mut host);
    assert!(refusal.errno == libc::ENOMEM && refusal.sentence.contains("user_share"), "{}", refusal.sentence);
    let mut bystander = Program::start(&mut host, BYSTANDER).expect("a program");
    let theirs: Vec<_> = (0..1000).map(|_| register(&mut bystander, &mut host).expect("a region")).collect();
    own.into_iter().for_each(|(mr, _)| deregister(&mut greedy, &mut host, mr));
    theirs.into_iter().for_each(|(mr, _)| deregister(&mut bystander, &mut host, mr));
    assert!(register(&mut greedy, &mut host).is_ok());
    greedy.end(&mut host);
    bystander.end(&mut host);
    assert!(common::is_all_given_back(&host));
}
