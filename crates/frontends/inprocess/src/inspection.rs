//! What `burst ls`, `stats`, `cm` and `capture` see of a program with an engine of its own: sessions that only read
//! ([`burst_control::inspection`]). The keeper serves the socket.

use crate::house::House;
use burst_control::inspection::{InspectedHost, InspectionSocket};
use burst_control::socket_path::ProgramKind;
use burst_control::{Reply, Request};
use burst_host::{ClientProcess, Session};
use burst_peer::credentials::PeerCredentials;
use std::os::fd::OwnedFd;

/// The socket of this process. `None`: it cannot be bound, and nobody sees the program.
pub fn open() -> Option<InspectionSocket<Session>> {
    let opened = InspectionSocket::open(ProgramKind::InProcess);
    opened.map_err(|why| tracing::info!("burst ls, stats and cm do not see this program: {why}")).ok()
}

impl InspectedHost for House {
    type Visitor = Session;

    fn admit(&mut self, peer: PeerCredentials) -> Option<Session> {
        Session::admit(&self.host, ClientProcess { pid: peer.pid, uid: peer.uid }).ok()
    }

    fn answer(&mut self, session: &mut Session, request: Request) -> Option<(Reply, Vec<OwnedFd>)> {
        let fds = session.foreign(&self.host, Vec::new());
        session.answer(&mut self.host, request, fds)
    }

    fn leave(&mut self, mut session: Session) {
        session.end(&mut self.host);
    }
}
