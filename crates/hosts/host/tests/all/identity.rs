//! Users: what a program of another user than the daemon's may not do, and what it sees of others. Its process is not known to
//! the kernel here, so it has no capability.
use crate::common::{Program, host};
use burst_base::verbs::{QpAttr, QpCap, QpState, QpType, attr_mask as m};
use burst_base::{Nanos, Qkey};
use burst_control::cm::{CmAddr, CmCommand, CmReply, PortSpace};
use burst_control::monitor::{CmConnectionState, CmCursor, LogState, LogTargetLevel};
use burst_control::{CqInitAttr, QpCookies, QpInitAttr, Refusal, Request, Response};
use burst_host::log_levels::LogLevels;
use burst_host::{ClientProcess, Host, Session};
use std::sync::{Arc, Mutex};

const MASK: u32 = m::STATE | m::PKEY_INDEX | m::PORT | m::QKEY;
const PRIVILEGED: Qkey = Qkey(0x8001_0000);

/// A user who is neither root nor the one who runs the tests.
fn stranger(number: u32) -> u32 {
    rustix::process::geteuid().as_raw() + 1000 + number
}

fn program(host: &mut Host, uid: u32) -> Session {
    let mut session = Session::admit(host, ClientProcess { pid: 0, uid }).expect("admitted");
    ask(&mut session, host, Request::Hello { program: "test".into() }).expect("welcome");
    session
}

fn ask(session: &mut Session, host: &mut Host, request: Request) -> Result<Response, Refusal> {
    let fds = session.foreign(host, Vec::new());
    session.handle(host, request, fds).map(|reply| reply.response)
}

fn attr(qkey: Qkey) -> QpAttr {
    QpAttr { qp_state: QpState::Init, port_num: 1, qkey, ..QpAttr::default() }
}

/// The handle of a new queue pair for datagrams.
fn datagram_qp(session: &mut Session, host: &mut Host) -> u32 {
    let mut ask = |request| ask(session, host, request).expect("granted");
    ask(Request::OpenContext { device: 0 });
    let Response::Handle(pd) = ask(Request::AllocPd) else { panic!("no protection domain") };
    let cq = Request::CreateCq(CqInitAttr { entries: 4, channel: None, cookie: 0, vector: 0 });
    let Response::Cq { cq, .. } = ask(cq) else { panic!("no completion queue") };
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInitAttr { pd, qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, srq: None, cap };
    let names = vec![QpCookies { cookie: 0, event_cookie: 0 }];
    let Response::Qps(made) = ask(Request::CreateQp { init, names }) else { panic!("no queue pair") };
    made[0].qp
}

#[test]
fn a_privileged_qkey_is_refused_with_and_without_a_reply() {
    let mut host = host(50);
    let mut session = program(&mut host, stranger(1));
    let qp = datagram_qp(&mut session, &mut host);
    let refused = ask(&mut session, &mut host, Request::ModifyQp { qp, attr: attr(PRIVILEGED), mask: MASK });
    let refused = refused.expect_err("no capability");
    assert_eq!(refused.errno, libc::EPERM);
    assert!(refused.sentence.contains("CAP_NET_RAW"), "{}", refused.sentence);
    ask(&mut session, &mut host, Request::ModifyQp { qp, attr: attr(Qkey(7)), mask: MASK }).expect("any other Q_Key");
    let silent = Request::ModifyQpWithoutReply { qp, attr: attr(PRIVILEGED), mask: m::QKEY };
    let fds = session.foreign(&host, Vec::new());
    assert!(session.answer(&mut host, silent, fds).is_none());
    let Ok(Response::QpAttr(now)) = ask(&mut session, &mut host, Request::QueryQp { qp }) else { panic!("no answer") };
    assert_eq!(now.qkey, Qkey(7));
    // Without the mask's bit the value has no meaning.
    let rtr = QpAttr { qp_state: QpState::Rtr, ..attr(PRIVILEGED) };
    ask(&mut session, &mut host, Request::ModifyQp { qp, attr: rtr, mask: m::STATE }).expect("no Q_Key");
    session.end(&mut host);
}

fn cm(session: &mut Session, host: &mut Host, command: CmCommand) -> CmReply {
    let Ok(Response::Cm(mut replies)) = ask(session, host, Request::Cm { commands: vec![command] }) else {
        panic!("no answer")
    };
    replies.remove(0)
}

/// Creates id `id` of a program and binds it.
fn bind(session: &mut Session, host: &mut Host, id: u32, port: u16) -> CmReply {
    if id == 1 {
        ask(session, host, Request::CmChannel { channel: 1 }).expect("a channel");
    }
    let create = CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc };
    assert_eq!(cm(session, host, create), CmReply::Done);
    let addr = CmAddr { ip: "0.0.0.0".parse().expect("ip"), port, scope: 0 };
    cm(session, host, CmCommand::Bind { id, addr })
}

#[test]
fn a_privileged_port_is_refused_and_its_id_can_be_bound_elsewhere() {
    let mut host = host(50);
    let mut session = program(&mut host, stranger(1));
    let CmReply::Failed { errno, sentence } = bind(&mut session, &mut host, 1, 1) else { panic!("granted") };
    assert_eq!(errno, libc::EACCES);
    assert!(sentence.contains("port 1 needs CAP_NET_BIND_SERVICE"), "{sentence}");
    let addr = CmAddr { ip: "0.0.0.0".parse().expect("ip"), port: 65_000, scope: 0 };
    assert!(matches!(cm(&mut session, &mut host, CmCommand::Bind { id: 1, addr }), CmReply::Route(_)));
    assert!(matches!(bind(&mut session, &mut host, 2, 0), CmReply::Route(_)), "port 0 chooses one");
    session.end(&mut host);
}

#[test]
fn listeners_of_other_users_are_a_number() {
    let mut host = host(50);
    let mut owner = program(&mut host, stranger(1));
    assert!(matches!(bind(&mut owner, &mut host, 1, 65_001), CmReply::Route(_)));
    assert!(matches!(cm(&mut owner, &mut host, CmCommand::Listen { id: 1, backlog: 1 }), CmReply::Route(_)));
    for (uid, shown, others) in [(stranger(1), 1, 0), (stranger(2), 0, 1), (0, 1, 0), (u32::MAX, 0, 1)] {
        let mut viewer = program(&mut host, uid);
        let Ok(Response::CmConnections { connections, hidden, next: None }) =
            ask(&mut viewer, &mut host, Request::CmConnections { from: CmCursor::default() })
        else {
            panic!("no page")
        };
        assert_eq!((connections.len(), hidden), (shown, others), "user {uid}");
        assert!(connections.iter().all(|c| c.state == CmConnectionState::Listening && c.uid == Some(stranger(1))));
        viewer.end(&mut host);
    }
    owner.end(&mut host);
}

/// What another user's program may not do, and root's may not do wrong: nothing changes.
#[test]
fn only_root_and_the_daemons_user_impair_a_port() {
    let mut host = host(50);
    let own = rustix::process::geteuid().as_raw();
    let mut programs = [own, stranger(1)].map(|uid| Program::start(&mut host, uid).expect("a program"));
    let mut ask = |program: usize, device, options: &str, seconds: u64| {
        let request = Request::Impair { device, options: options.into(), time_ns: seconds * 1_000_000_000 };
        let done = programs[program].ask(&mut host, request);
        let in_force = host.devices[0].info_at(host.now()).impairment.map(|impairment| impairment.options);
        (done.map(drop).map_err(|refusal| refusal.errno), in_force)
    };
    assert_eq!(ask(1, 0, "loss=1%", 10), (Err(libc::EPERM), None));
    assert_eq!(ask(0, 0, "loss=1%", 10), (Ok(()), Some("loss=1%".into())));
    assert_eq!(ask(1, 0, "", 0), (Err(libc::EPERM), Some("loss=1%".into())));
    for (device, options, seconds) in
        [(1, "loss=2%", 10), (0, "los=2%", 10), (0, &"x".repeat(300), 10), (0, "loss=2%", 90_000)]
    {
        let (done, in_force) = ask(0, device, options, seconds);
        assert!(done.is_err() && in_force.as_deref() == Some("loss=1%"), "{options}: {done:?} {in_force:?}");
    }
    assert_eq!(ask(0, 0, "", 0), (Ok(()), None));
    programs.into_iter().for_each(|program| program.end(&mut host));
}

/// Peers are shared by all users: others see how many there are. A wrong name changes nothing.
#[test]
fn only_root_and_the_daemons_user_change_the_congestion_control() {
    let mut host = host(50);
    let own = rustix::process::geteuid().as_raw();
    let mut programs = [own, stranger(1)].map(|uid| Program::start(&mut host, uid).expect("a program"));
    let mut ask = |program: usize, cc: &str| {
        let done = programs[program].ask(&mut host, Request::SetCc { kind: None, cc: cc.into() });
        let Response::Cc { cc, peers, hidden, next } = host.congestion(own, CmCursor::default()) else {
            panic!("the congestion control")
        };
        assert!(peers.is_empty() && hidden == 0 && next.is_none());
        (done.map(drop).map_err(|refusal| (refusal.errno, refusal.sentence)), cc)
    };
    let refused = ask(1, "dcqcn");
    assert!(matches!(refused.0, Err((libc::EPERM, _))) && refused.1 == "auto", "{refused:?}");
    assert_eq!(ask(0, "dcqcn:rpg_ai_rate=100M"), (Ok(()), "dcqcn:rpg_ai_rate=100M".into()));
    for (text, near) in
        [("dctpc", "'dctcp'"), ("dcqcn:rpg_ai_rat=1M", "'rpg_ai_rate'"), ("dcqcn:rpg_ai_rate=x", "from")]
    {
        let (done, cc) = ask(0, text);
        let (errno, sentence) = done.expect_err(text);
        assert!(errno == libc::EINVAL && sentence.contains(near) && cc == "dcqcn:rpg_ai_rate=100M", "{sentence} {cc}");
    }
    assert!(ask(0, &"x".repeat(2000)).0.is_err());
    assert_eq!(ask(0, "auto"), (Ok(()), "auto".into()));
    programs.into_iter().for_each(|program| program.end(&mut host));
}

/// A log with one target, whose level is the last change.
#[derive(Default)]
struct OneLevel(Mutex<String>);

impl LogLevels for OneLevel {
    fn state(&self) -> LogState {
        let level = self.0.lock().expect("one thread").clone();
        LogState { targets: vec![LogTargetLevel { name: "host".into(), level, about: String::new() }], left_out: 3 }
    }

    fn set(&self, levels: &str) -> Result<(), String> {
        if levels == "wrong" {
            return Err("no level".into());
        }
        *self.0.lock().expect("one thread") = levels.into();
        Ok(())
    }

    fn due_at(&self, _: Nanos) -> Option<Nanos> {
        None
    }

    fn report(&self, _: Nanos) {}
}

/// Levels are shown to everyone. A host that has no log of its own says so.
#[test]
fn only_root_and_the_daemons_user_change_the_levels_of_the_log() {
    let mut host = host(50);
    let own = rustix::process::geteuid().as_raw();
    let mut programs = [own, own + 1001, u32::MAX].map(|uid| program(&mut host, uid));
    let mut request = |host: &mut Host, number: usize, levels: Option<&str>| match ask(
        &mut programs[number],
        host,
        Request::Log { levels: levels.map(str::to_owned) },
    ) {
        Ok(Response::Log(LogState { targets, left_out: 3 })) => Ok(targets[0].level.clone()),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.errno),
    };
    assert_eq!(request(&mut host, 0, None), Err(libc::EOPNOTSUPP));
    host.log = Some(Arc::new(OneLevel::default()));
    assert_eq!(request(&mut host, 0, Some("debug")), Ok("debug".into()));
    for viewer in [1, 2] {
        assert_eq!(request(&mut host, viewer, None), Ok("debug".into()));
        assert_eq!(request(&mut host, viewer, Some("trace")), Err(libc::EPERM));
    }
    for wrong in ["wrong", &"x".repeat(2000)] {
        assert_eq!(request(&mut host, 0, Some(wrong)), Err(libc::EINVAL));
    }
    assert_eq!(request(&mut host, 0, None), Ok("debug".into()), "refused changes have changed nothing");
    programs.into_iter().for_each(|mut program| program.end(&mut host));
}
