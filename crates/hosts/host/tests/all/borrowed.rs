//! Connections of a program may name queue pairs of its own user only: peers take a request that names the queue pair of an
//! existing connection as a sign that this connection is stale, and end it.
use crate::common::{Program, host, queue_pair};
use burst_base::verbs::QpType;
use burst_control::cm::{CmAddr, CmCommand, CmData, CmReply, ConnParam, PortSpace};
use burst_control::{Request, Response};
use burst_host::Host;

const ATTACKER: u32 = 1001;
const VICTIM: u32 = 1002;

fn queue_pair_of(program: &mut Program, host: &mut Host) -> u32 {
    let request = queue_pair(program.pd, program.cq, QpType::Rc);
    let Ok(Response::Qps(grants)) = program.ask(host, request) else { panic!("no queue pair") };
    grants[0].qpn
}

/// Asks for a connection of a queue pair that the program moves itself. Returns the errno of a refusal.
fn connect(program: &mut Program, host: &mut Host, id: u32, qpn: u32) -> Option<i32> {
    let dst = CmAddr { ip: "10.0.0.1".parse().expect("an address"), port: 7471, scope: 0 };
    let commands = vec![
        CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc },
        CmCommand::ResolveAddr { id, src: None, dst, timeout_ms: 100 },
        CmCommand::Connect { id, qp: None, param: ConnParam { qpn, ..ConnParam::default() }, data: CmData::EMPTY },
    ];
    let Ok(Response::Cm(replies)) = program.ask(host, Request::Cm { commands }) else { panic!("no replies") };
    match &replies[..] {
        [CmReply::Done, CmReply::Route(_), CmReply::Done] => None,
        [CmReply::Done, CmReply::Route(_), CmReply::Failed { errno, .. }] => Some(*errno),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_connects_no_queue_pair_of_another_user() {
    let mut host = host(50);
    let mut victim = Program::start(&mut host, VICTIM).expect("a program");
    let mut attacker = Program::start(&mut host, ATTACKER).expect("a program");
    attacker.ask(&mut host, Request::CmChannel { channel: 1 }).expect("a channel");
    let (theirs, own) = (queue_pair_of(&mut victim, &mut host), queue_pair_of(&mut attacker, &mut host));
    assert_eq!(connect(&mut attacker, &mut host, 1, theirs), Some(libc::EACCES));
    assert_eq!(connect(&mut attacker, &mut host, 2, own), None);
    attacker.end(&mut host);
    victim.end(&mut host);
}
