//! Connections per second between two daemons, by control messages only: the daemons' rate without the cost of a library.
//!
//!     cmload server SOCKET IP PORT THREADS
//!     cmload client SOCKET IP PORT THREADS COUNT WINDOW
//!
//! Each thread is a program of its own, with a context whose queue pairs the daemon moves. The client sets up COUNT
//! connections per thread with at most WINDOW under way, then ends them all, and prints both rates.

use burst_base::verbs::{QpCap, QpType};
use burst_control::cm::{CmAddr, CmCommand, CmData, CmEvent, CmEventKind, CmQp, ConnParam, PortSpace};
use burst_control::{Client, CommandSender, CqInitAttr, QpCookies, QpInitAttr, Request, Response};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

const CAP: QpCap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

struct Program {
    sender: CommandSender,
    cm: Client,
    verbs: Client,
    events: OwnedFd,
    token: u64,
    pd: u32,
    cq: u32,
    unread: Vec<CmEvent>,
}

fn call(client: &mut Client, request: &Request) -> Response {
    client.call(request, &[]).expect("the daemon agrees").response
}

impl Program {
    fn new(socket: &Path) -> Program {
        let mut cm = Client::connect(socket, "cmload").expect("a daemon");
        let events = cm.call(&Request::CmChannel { channel: 1 }, &[]).expect("channel").fds.remove(0);
        let mut verbs = Client::connect(socket, "cmload").expect("a daemon");
        call(&mut verbs, &Request::OpenContext { device: 0 });
        let Response::Handle(pd) = call(&mut verbs, &Request::AllocPd) else { panic!("no domain") };
        let request = Request::CreateCq(CqInitAttr { entries: 16, channel: None, cookie: 0, vector: 0 });
        let Response::Cq { cq, .. } = call(&mut verbs, &request) else { panic!("no queue") };
        let Response::Token(token) = call(&mut verbs, &Request::Token) else { panic!("no token") };
        let sender = cm.command_sender().expect("a command ring");
        Program { sender, cm, verbs, events, token, pd, cq, unread: Vec::new() }
    }

    fn create_qp(&mut self) -> (u32, CmQp) {
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let request = Request::CreateQp {
            init: QpInitAttr { pd: self.pd, qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap: CAP },
            names: vec![QpCookies { cookie: 0, event_cookie: 0 }],
        };
        let Response::Qps(made) = call(&mut self.verbs, &request) else { panic!("no queue pair") };
        (made[0].qp, CmQp { token: self.token, qpn: made[0].qpn })
    }

    fn without_reply(&mut self, ops: Vec<CmCommand>) {
        while !self.sender.send(&ops).expect("sent") {
            self.cm.flush_commands().expect("the daemon answers");
        }
    }

    fn event(&mut self) -> CmEvent {
        if self.unread.is_empty() {
            let mut records = [0; 32 * CmEvent::BYTES];
            let n = rustix::io::read(&self.events, &mut records).expect("events");
            let whole = records[..n].as_chunks().0.iter().rev();
            self.unread.extend(whole.filter_map(CmEvent::from_bytes));
        }
        self.unread.pop().expect("whole records")
    }
}

fn param() -> ConnParam {
    ConnParam { responder_resources: 1, initiator_depth: 1, retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() }
}

fn serve(socket: &Path, addr: CmAddr) {
    let mut p = Program::new(socket);
    p.without_reply(vec![
        CmCommand::Create { id: 1, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc },
        CmCommand::Bind { id: 1, addr },
        CmCommand::Listen { id: 1, backlog: 65_536 },
    ]);
    let mut qps = HashMap::new();
    loop {
        let event = p.event();
        match event.kind {
            CmEventKind::ConnectRequest => {
                let (handle, qp) = p.create_qp();
                qps.insert(event.id, handle);
                p.without_reply(vec![CmCommand::Accept {
                    id: event.id,
                    qp: Some(qp),
                    param: param(),
                    data: CmData::EMPTY,
                }]);
            }
            CmEventKind::Established => {}
            CmEventKind::Disconnected => {
                p.without_reply(vec![CmCommand::Destroy { id: event.id, read: 0 }]);
                if let Some(qp) = qps.remove(&event.id) {
                    call(&mut p.verbs, &Request::DestroyQp { qp });
                }
            }
            CmEventKind::TimewaitExit => {}
            other => println!("{other:?} {}", event.status),
        }
    }
}

/// Seconds for setup and for teardown.
fn drive(socket: &Path, dst: CmAddr, count: u32, window: u32) -> [f64; 2] {
    let mut p = Program::new(socket);
    let begun = Instant::now();
    let (mut asked, mut done) = (0, 0);
    let mut handles = Vec::new();
    while done < count {
        while asked < count && asked - done < window {
            asked += 1;
            let (handle, qp) = p.create_qp();
            handles.push(handle);
            p.without_reply(vec![
                CmCommand::Create { id: asked, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc },
                CmCommand::ResolveAddr { id: asked, src: None, dst, timeout_ms: 2000 },
                CmCommand::ResolveRoute { id: asked, timeout_ms: 2000 },
                CmCommand::Connect { id: asked, qp: Some(qp), param: param(), data: CmData::EMPTY },
            ]);
        }
        let event = p.event();
        match event.kind {
            CmEventKind::Established => done += 1,
            CmEventKind::AddrResolved | CmEventKind::RouteResolved => {}
            other => panic!("{other:?} {}", event.status),
        }
    }
    let setup = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    for ids in (1..=count).collect::<Vec<_>>().chunks(64) {
        p.without_reply(ids.iter().map(|id| CmCommand::Disconnect { id: *id }).collect());
    }
    let mut ended = 0;
    while ended < count {
        if p.event().kind == CmEventKind::Disconnected {
            ended += 1;
        }
    }
    for ids in (1..=count).collect::<Vec<_>>().chunks(64) {
        p.without_reply(ids.iter().map(|id| CmCommand::Destroy { id: *id, read: 0 }).collect());
    }
    for qp in handles {
        call(&mut p.verbs, &Request::DestroyQp { qp });
    }
    [setup, begun.elapsed().as_secs_f64()]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize| args[n].parse::<u32>().expect("a number");
    let socket = Path::new(&args[2]);
    let base = CmAddr { ip: args[3].parse().expect("an address"), port: number(4) as u16, scope: 0 };
    let threads = number(5) as u16;
    let addr = |n: u16| CmAddr { port: base.port + n, ..base };
    std::thread::scope(|scope| {
        if args[1] == "server" {
            (0..threads).for_each(|n| drop(scope.spawn(move || serve(socket, addr(n)))));
            return;
        }
        let (count, window) = (number(6), number(7));
        let begun = Instant::now();
        let runs: Vec<_> = (0..threads).map(|n| scope.spawn(move || drive(socket, addr(n), count, window))).collect();
        let times: Vec<[f64; 2]> = runs.into_iter().map(|r| r.join().expect("no panic")).collect();
        let total = f64::from(count) * f64::from(threads);
        let slowest = |k: usize| times.iter().map(|t| t[k]).fold(0.0, f64::max);
        println!(
            "{total} connections: setup {:.0}/s, teardown {:.0}/s, both {:.0}/s",
            total / slowest(0),
            total / slowest(1),
            total / begun.elapsed().as_secs_f64()
        );
    });
}
