//! Addresses of listeners: a user whose program listens gets the connections of its address, whatever other users bind.
use crate::common::{Program, host};
use burst_base::verbs::QpType;
use burst_control::Request;
use burst_control::cm::{CmAddr, CmCommand, CmIdOption, CmReply, PortSpace};
use burst_host::Host;

const VICTIM: u32 = 1001;
const HOSTILE: u32 = 1002;
const PORT: u16 = 7174;

/// A program with ids 1 and 2, of which each shares its address if others do, too.
fn sharing(host: &mut Host, uid: u32) -> Program {
    let mut program = Program::connect(host, uid).expect("a program");
    program.ask(host, Request::CmChannel { channel: 0 }).expect("a channel");
    for id in [1, 2] {
        let create = CmCommand::Create { id, channel: 0, ps: PortSpace::Tcp, qp_type: QpType::Rc };
        let share = CmCommand::SetOption { id, option: CmIdOption::ReuseAddr(true) };
        for command in [create, share] {
            program.command(host, command).expect("done");
        }
    }
    program
}

fn bind(id: u32, ip: &str) -> CmCommand {
    CmCommand::Bind { id, addr: CmAddr { ip: ip.parse().expect("ip"), port: PORT, scope: 0 } }
}

fn listen(id: u32) -> CmCommand {
    CmCommand::Listen { id, backlog: 4 }
}

#[test]
fn no_id_is_bound_to_a_part_of_a_listeners_address() {
    for (first, second) in
        [("0.0.0.0", "10.0.0.1"), ("::", "10.0.0.1"), ("10.0.0.1", "0.0.0.0"), ("0.0.0.0", "0.0.0.0")]
    {
        let mut host = host(50);
        let (mut victim, mut hostile) = (sharing(&mut host, VICTIM), sharing(&mut host, HOSTILE));
        victim.command(&mut host, bind(1, first)).expect("free");
        victim.command(&mut host, listen(1)).expect("alone");
        // Of the same user, too, as in the kernel.
        for program in [&mut hostile, &mut victim] {
            let refusal = program.command(&mut host, bind(2, second)).expect_err("the listener has the address");
            assert_eq!(refusal.errno, libc::EADDRNOTAVAIL, "{first}, then {second}: {}", refusal.sentence);
        }
        // The victim has it until it ends.
        victim.end(&mut host);
        hostile.command(&mut host, bind(2, second)).expect("free again");
        hostile.command(&mut host, listen(2)).expect("alone");
        hostile.end(&mut host);
    }
}

#[test]
fn an_id_that_shares_its_address_cannot_listen() {
    let mut host = host(50);
    let (mut victim, mut hostile) = (sharing(&mut host, VICTIM), sharing(&mut host, HOSTILE));
    victim.command(&mut host, bind(1, "0.0.0.0")).expect("free");
    hostile.command(&mut host, bind(1, "10.0.0.1")).expect("both allow it");
    for program in [&mut victim, &mut hostile] {
        let refusal = program.command(&mut host, listen(1)).expect_err("another id has a part of the address");
        assert_eq!(refusal.errno, libc::EADDRNOTAVAIL, "{}", refusal.sentence);
    }
    hostile.end(&mut host);
    assert!(matches!(victim.command(&mut host, listen(1)), Ok(CmReply::Route(_))), "alone");
    victim.end(&mut host);
}

#[test]
fn an_id_that_chooses_no_port_gets_one() {
    let mut host = host(50);
    let mut program = sharing(&mut host, VICTIM);
    for (id, command) in [(1, bind(1, "0.0.0.0")), (2, listen(2))] {
        let command = match command {
            CmCommand::Bind { addr, .. } => CmCommand::Bind { id, addr: CmAddr { port: 0, ..addr } },
            other => other,
        };
        let Ok(CmReply::Route(route)) = program.command(&mut host, command) else { panic!("bound") };
        assert_ne!(route.src.expect("an address").port, 0);
    }
    program.end(&mut host);
}
