//! Random requests of hostile programs: objects that exist and that do not, values at and over every limit.

use crate::program::{ALL_RIGHTS, MEMORY_AT};
use burst_base::gid::gid_of;
use burst_base::rng::Rng;
use burst_base::verbs::{AhAttr, Mtu, MwType, QpAttr, QpCap, QpState, QpType, attr_mask};
use burst_base::{Psn, Qkey, Qpn};
use burst_control::cm::{CmAddr, CmCommand, CmData, CmIdOption, CmQp, ConnParam, DAEMON_IDS, Ece, PortSpace};
use burst_control::monitor::CmCursor;
use burst_control::{
    CqInitAttr, ImportObject, MrPiece, MrPieceKind, QpCookies, QpInitAttr, Request, SrqInitAttr, XrcSrqAttr,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Kinds of numbers that replies bring and requests name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Pd,
    Mr,
    Dm,
    Mw,
    Channel,
    Cq,
    Xrcd,
    Srq,
    Qp,
    Ah,
    Key,
    Qpn,
    Id,
    CmChannel,
}

/// The Q_Key of most datagram queue pairs.
pub const COMMON_QKEY: u32 = 0x1111;
/// Numbers kept of each kind.
const KEPT: usize = 32;

/// The numbers that a program knows, and the source of its choices.
pub struct Numbers {
    pub rng: Rng,
    known: BTreeMap<Kind, Vec<u32>>,
    /// Tokens of the program's contexts.
    pub tokens: Vec<u64>,
    /// Addresses of the hosts.
    pub addrs: Vec<IpAddr>,
    /// Queue pair numbers of others.
    pub victims: Vec<u32>,
    next_id: u32,
}

impl Numbers {
    pub fn new(rng: Rng, addrs: Vec<IpAddr>) -> Numbers {
        Numbers { rng, known: BTreeMap::new(), tokens: Vec::new(), addrs, victims: Vec::new(), next_id: 0 }
    }

    /// Learns a number.
    pub fn learn(&mut self, kind: Kind, number: u32) {
        let known = self.known.entry(kind).or_default();
        if known.len() == KEPT {
            known.remove(0);
        }
        known.push(number);
    }

    /// A number of a kind: most often a known one.
    pub fn some(&mut self, kind: Kind) -> u32 {
        let known = self.known.get(&kind).map_or(&[][..], Vec::as_slice);
        if !known.is_empty() && self.rng.chance(15, 16) {
            return known[self.rng.below(known.len() as u64) as usize];
        }
        if kind == Kind::Qpn && !self.victims.is_empty() && self.rng.chance(1, 2) {
            return self.victims[self.rng.below(self.victims.len() as u64) as usize];
        }
        self.odd()
    }

    /// A number at some limit, small, or any.
    pub fn odd(&mut self) -> u32 {
        let any = self.rng.next_u32();
        let bit = 1u32 << self.rng.below(32);
        [self.rng.below(4) as u32, self.rng.below(100) as u32, any, u32::MAX, bit, bit - 1, 0]
            [self.rng.below(7) as usize]
    }

    /// A number up to `most`, mostly small.
    pub fn size(&mut self, most: u32) -> u32 {
        match self.rng.below(8) {
            0 => self.odd(),
            1 => most,
            2 => most + 1,
            _ => self.rng.between(1, 64.min(u64::from(most))) as u32,
        }
    }

    pub fn odd64(&mut self) -> u64 {
        u64::from(self.odd()) << [0, 12, 32][self.rng.below(3) as usize] | u64::from(self.rng.next_u32() & 0xfff)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.below(all.len() as u64) as usize]
    }

    fn token(&mut self) -> u64 {
        if self.tokens.is_empty() || self.rng.chance(1, 8) {
            return self.rng.next_u64();
        }
        let at = self.rng.below(self.tokens.len() as u64) as usize;
        self.tokens[at]
    }

    fn ip(&mut self) -> IpAddr {
        let own = self.addrs.clone();
        match self.rng.below(10) {
            0 => IpAddr::from([127, 0, 0, 1]),
            1 => IpAddr::from([0, 0, 0, 0]),
            2 => IpAddr::from([239, 1, 2, self.rng.below(4) as u8]),
            3 => Ipv6Addr::from(u128::from(self.rng.next_u64()) << 64).into(),
            4 => IpAddr::from([10, 0, 0, self.rng.next_u32() as u8]),
            _ => self.of(&own),
        }
    }

    fn addr(&mut self) -> CmAddr {
        // Ports of other hostile programs, of honest ones, and any.
        let (hostile, honest) = (20_000 + self.rng.below(8) as u16, 32_768 + self.rng.below(64) as u16);
        let port = [0, hostile, honest, self.rng.next_u32() as u16][self.rng.below(4) as usize];
        CmAddr { ip: self.ip(), port, scope: if self.rng.chance(1, 8) { self.odd() } else { 0 } }
    }

    fn gid(&mut self) -> [u8; 16] {
        if self.rng.chance(1, 16) {
            let mut gid = [0; 16];
            self.rng.fill(&mut gid);
            return gid;
        }
        gid_of(self.ip())
    }

    fn ah(&mut self) -> AhAttr {
        AhAttr {
            dgid: self.gid(),
            sgid_index: if self.rng.chance(1, 8) { self.odd() as u8 } else { 0 },
            traffic_class: self.odd() as u8,
            hop_limit: self.odd() as u8,
            flow_label: self.odd(),
            is_global: self.rng.chance(15, 16),
            port_num: if self.rng.chance(1, 16) { self.odd() as u8 } else { 1 },
            ..AhAttr::default()
        }
    }

    fn cap(&mut self) -> QpCap {
        QpCap {
            max_send_wr: self.size(32_768),
            max_recv_wr: self.size(32_768),
            max_send_sge: self.size(4),
            max_recv_sge: self.size(4),
            max_inline_data: if self.rng.chance(1, 4) { self.size(1024) } else { 0 },
        }
    }

    fn attr(&mut self) -> QpAttr {
        QpAttr {
            qp_state: self.of(QpState::ALL),
            cur_qp_state: self.of(QpState::ALL),
            path_mtu: self.of(Mtu::ALL),
            qkey: Qkey(self.odd()),
            rq_psn: Psn::new(self.odd()),
            sq_psn: Psn::new(self.odd()),
            dest_qpn: Qpn::new(self.some(Kind::Qpn)),
            qp_access_flags: if self.rng.chance(1, 2) { ALL_RIGHTS } else { self.odd() },
            cap: self.cap(),
            ah: self.ah(),
            pkey_index: if self.rng.chance(1, 8) { 1 } else { 0 },
            max_rd_atomic: self.odd() as u8,
            max_dest_rd_atomic: self.odd() as u8,
            min_rnr_timer: self.odd() as u8,
            port_num: 1,
            timeout: self.odd() as u8,
            retry_cnt: self.odd() as u8,
            rnr_retry: self.odd() as u8,
            ..QpAttr::default()
        }
    }

    /// A change of a queue pair, most often one that is legal in some state.
    fn modify(&mut self) -> (QpAttr, u32) {
        use attr_mask as m;
        let mut attr = self.attr();
        let init = m::STATE | m::PKEY_INDEX | m::PORT;
        let rtr = m::STATE | m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
        let rts = m::STATE | m::SQ_PSN;
        let (rc_rtr, rc_rts) =
            (m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER, m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC);
        let (state, mask) = match self.rng.below(10) {
            0 | 1 => (QpState::Init, init | m::ACCESS_FLAGS),
            2 => (QpState::Init, init | m::QKEY),
            3 | 4 => (QpState::Rtr, rtr | rc_rtr),
            5 => (QpState::Rtr, [rtr, m::STATE][self.rng.below(2) as usize]),
            6 | 7 => (QpState::Rts, rts | rc_rts),
            8 => (QpState::Rts, rts),
            _ => return (attr, self.odd() | if self.rng.chance(1, 2) { m::STATE } else { 0 }),
        };
        attr.qp_state = state;
        if self.rng.chance(3, 4) {
            // Values that a device accepts.
            let mtu = self.of(&[Mtu::B256, Mtu::B1024]);
            let some = self.rng.below(8) as u8;
            attr = QpAttr {
                path_mtu: mtu,
                pkey_index: 0,
                qkey: Qkey(attr.qkey.0 & 0x7fff_ffff),
                max_rd_atomic: some,
                max_dest_rd_atomic: some,
                min_rnr_timer: some,
                timeout: 1 + some,
                retry_cnt: some % 8,
                rnr_retry: some % 8,
                qp_access_flags: ALL_RIGHTS,
                ..attr
            };
        }
        (attr, mask)
    }

    /// The changes that bring a queue pair to RTS, towards a peer on a host.
    pub fn raise(&mut self, qp: u32, qp_type: QpType, peer: u32, host: usize) -> [Request; 3] {
        use attr_mask as m;
        let attr = QpAttr {
            path_mtu: Mtu::B1024,
            qkey: Qkey(COMMON_QKEY),
            dest_qpn: Qpn::new(peer),
            qp_access_flags: ALL_RIGHTS,
            ah: AhAttr { dgid: gid_of(self.addrs[host]), is_global: true, port_num: 1, ..AhAttr::default() },
            max_rd_atomic: 4,
            max_dest_rd_atomic: self.rng.between(1, 4) as u8,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: self.rng.between(8, 14) as u8,
            retry_cnt: self.rng.below(8) as u8,
            rnr_retry: self.rng.below(8) as u8,
            ..QpAttr::default()
        };
        let init = m::STATE | m::PKEY_INDEX | m::PORT;
        let (rtr, rts) = (m::STATE | m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN, m::STATE | m::SQ_PSN);
        let masks = match qp_type {
            QpType::Ud => [init | m::QKEY, m::STATE, rts],
            QpType::Uc => [init | m::ACCESS_FLAGS, rtr, rts],
            _ => [
                init | m::ACCESS_FLAGS,
                rtr | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER,
                rts | m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC,
            ],
        };
        let states = [QpState::Init, QpState::Rtr, QpState::Rts];
        [0, 1, 2].map(|n| Request::ModifyQp { qp, attr: QpAttr { qp_state: states[n], ..attr }, mask: masks[n] })
    }

    /// Commands that listen, or that connect to some listener.
    pub fn climb(&mut self) -> Vec<CmCommand> {
        self.next_id += 1;
        let id = self.next_id;
        self.learn(Kind::Id, id);
        let channel = self.some(Kind::CmChannel);
        let create = CmCommand::Create { id, channel, ps: PortSpace::Tcp, qp_type: QpType::Rc };
        let at = self.rng.below(self.addrs.len() as u64) as usize;
        let port = [20_000 + self.rng.below(8) as u16, 32_768 + self.rng.below(64) as u16][self.rng.below(2) as usize];
        let addr = CmAddr { ip: self.addrs[at], port, scope: 0 };
        if self.rng.chance(1, 3) {
            let addr = CmAddr { ip: [0, 0, 0, 0].into(), port: 20_000 + self.rng.below(8) as u16, scope: 0 };
            return vec![create, CmCommand::Bind { id, addr }, CmCommand::Listen { id, backlog: 1 + self.odd() % 4 }];
        }
        vec![
            create,
            CmCommand::ResolveAddr { id, src: None, dst: addr, timeout_ms: 100 },
            CmCommand::ResolveRoute { id, timeout_ms: 100 },
            CmCommand::Connect { id, qp: self.qp_of_cm(), param: self.param(), data: CmData::EMPTY },
        ]
    }

    fn param(&mut self) -> ConnParam {
        ConnParam {
            responder_resources: self.odd() as u8,
            initiator_depth: self.odd() as u8,
            flow_control: self.rng.chance(1, 2),
            retry_count: self.odd() as u8,
            rnr_retry_count: self.odd() as u8,
            srq: self.rng.chance(1, 2),
            qpn: self.some(Kind::Qpn),
            qkey: self.odd(),
            ece: Ece { vendor_id: self.odd(), options: self.odd() },
        }
    }

    fn data(&mut self) -> CmData {
        let most = self.of(&[40, 57, 225]);
        let mut bytes = vec![0; self.rng.below(most) as usize];
        self.rng.fill(&mut bytes);
        CmData::new(&bytes).expect("it fits")
    }

    fn qp_of_cm(&mut self) -> Option<CmQp> {
        let qp = CmQp { token: self.token(), qpn: self.some(Kind::Qpn) };
        self.rng.chance(2, 3).then_some(qp)
    }

    /// A command of connection management.
    pub fn command(&mut self) -> CmCommand {
        let mut id = self.some(Kind::Id);
        if self.rng.chance(1, 6) {
            id = DAEMON_IDS + self.rng.below(8) as u32;
        }
        let qp_type = self.of(QpType::ALL);
        match self.rng.below(24) {
            0..3 => {
                self.next_id += 1;
                let id = if self.rng.chance(7, 8) { self.next_id } else { id };
                self.learn(Kind::Id, id);
                let (ps, qp_type) = match self.rng.below(4) {
                    0 => (PortSpace::Udp, QpType::Ud),
                    1 => (self.of(&[PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib]), qp_type),
                    _ => (PortSpace::Tcp, QpType::Rc),
                };
                CmCommand::Create { id, channel: self.some(Kind::CmChannel), ps, qp_type }
            }
            3 => CmCommand::Destroy { id, read: self.odd() },
            4 => CmCommand::Migrate { id, channel: self.some(Kind::CmChannel) },
            5 => CmCommand::Bind { id, addr: self.addr() },
            6..9 => {
                let src = self.addr();
                let src = self.rng.chance(1, 4).then_some(src);
                CmCommand::ResolveAddr { id, src, dst: self.addr(), timeout_ms: self.odd() }
            }
            9 | 10 => CmCommand::ResolveRoute { id, timeout_ms: self.odd() },
            11..14 => CmCommand::Connect { id, qp: self.qp_of_cm(), param: self.param(), data: self.data() },
            14 | 15 => CmCommand::Listen { id, backlog: self.odd() },
            16 => CmCommand::Accept { id, qp: self.qp_of_cm(), param: self.param(), data: self.data() },
            17 => CmCommand::Reject { id, reason: self.odd() as u16, data: self.data() },
            18 => CmCommand::Establish { id },
            19 => CmCommand::Notify { id },
            20 => CmCommand::Disconnect { id },
            21 => {
                let byte = self.odd() as u8;
                let on = byte & 1 == 0;
                let options = [
                    CmIdOption::Tos(byte),
                    CmIdOption::ReuseAddr(on),
                    CmIdOption::AfOnly(on),
                    CmIdOption::AckTimeout(byte),
                ];
                CmCommand::SetOption { id, option: self.of(&options) }
            }
            22 => CmCommand::Join { id, addr: self.addr(), cookie: self.odd64() },
            _ => match self.rng.below(3) {
                0 => CmCommand::Query { id },
                1 => CmCommand::QueryConn { id },
                _ => CmCommand::Leave { id, addr: self.addr() },
            },
        }
    }

    fn registration(&mut self, memory: u64) -> Request {
        let pages = self.rng.between(1, 4) * 4096;
        let offset = self.rng.below(memory / 4096) * 4096;
        let mut pieces: Vec<MrPiece> = (0..self.rng.between(1, 3))
            .map(|_| MrPiece { addr: MEMORY_AT, len: pages, kind: MrPieceKind::Fd { fd: 0, offset } })
            .collect();
        let mut len: u64 = pieces.iter().map(|p| p.len).sum();
        match self.rng.below(8) {
            0 => pieces[0].kind = MrPieceKind::InProcess,
            1 => pieces[0].kind = MrPieceKind::Fd { fd: self.odd(), offset: self.odd64() },
            2 => pieces[0].len = self.odd64(),
            3 => len = self.odd64(),
            4 => pieces.clear(),
            _ => {}
        }
        let (addr, iova) = if self.rng.chance(1, 8) { (self.odd64(), self.odd64()) } else { (MEMORY_AT, MEMORY_AT) };
        let access = if self.rng.chance(1, 4) { self.odd() } else { ALL_RIGHTS };
        let mr = self.some(Kind::Mr);
        let replaces = self.rng.chance(1, 6).then_some(mr);
        Request::RegMr { pd: self.some(Kind::Pd), addr, len, iova, access, pieces, replaces }
    }

    fn queue_pair(&mut self) -> Request {
        let (srq, qp_type) = (self.some(Kind::Srq), self.of(QpType::ALL));
        let init = QpInitAttr {
            pd: self.some(Kind::Pd),
            qp_type: if self.rng.chance(1, 2) { QpType::Rc } else { qp_type },
            send_cq: self.some(Kind::Cq),
            recv_cq: self.some(Kind::Cq),
            srq: self.rng.chance(1, 4).then_some(srq),
            cap: self.cap(),
        };
        let count = if self.rng.chance(1, 16) { self.rng.below(70) } else { self.rng.between(1, 2) };
        let names = (0..count).map(|n| QpCookies { cookie: n as u32, event_cookie: n }).collect();
        Request::CreateQp { init, names }
    }

    fn shared_receive_queue(&mut self) -> Request {
        let xrc = XrcSrqAttr { xrcd: self.some(Kind::Xrcd), cq: self.some(Kind::Cq) };
        Request::CreateSrq(SrqInitAttr {
            pd: self.some(Kind::Pd),
            max_wr: self.size(32_768),
            max_sge: self.size(8),
            limit: self.odd(),
            cookie: 1,
            xrc: self.rng.chance(1, 2).then_some(xrc),
        })
    }

    /// A request that needs no context, or little.
    fn general(&mut self, memory: u64) -> Request {
        match self.rng.below(18) {
            0 => Request::Hello { program: "x".repeat(self.rng.below(300) as usize) },
            1 => Request::DaemonInfo,
            2 => Request::ListDevices,
            3 => Request::Stats,
            4 => Request::Users { from: self.odd() },
            5 => Request::OpenContext { device: if self.rng.chance(1, 8) { self.odd() } else { 0 } },
            6 => Request::Token,
            7 => Request::CmStats,
            8 => Request::CmConnections { from: CmCursor { worker: self.odd(), slot: self.odd() } },
            9 => Request::CmCommandRing,
            10 => Request::AllocDm { len: [memory, self.odd64()][self.rng.below(2) as usize] },
            11 => Request::Impair { device: self.odd(), options: "loss=1%".into(), time_ns: self.odd64() },
            12 => Request::Cc { from: CmCursor { worker: self.odd(), slot: self.odd() } },
            13 => {
                let kind = [None, Some("burst"), Some("brust")][self.rng.below(3) as usize].map(str::to_owned);
                Request::SetCc {
                    kind,
                    cc: ["swift", "dcqcn", "aimd", "none", "timley", "cubic"][self.rng.below(6) as usize].into(),
                }
            }
            15 => Request::Histograms,
            16 => Request::OpenCopier,
            14 => Request::Log { levels: self.rng.chance(1, 2).then(|| "debug".into()) },
            _ => Request::ResolveMac { attr: self.ah() },
        }
    }

    /// Any request. `memory` is the length of the program's memory.
    pub fn request(&mut self, memory: u64) -> Request {
        match self.rng.below(48) {
            0..4 => self.general(memory),
            4 | 5 => Request::AllocPd,
            6 => Request::DeallocPd { pd: self.some(Kind::Pd) },
            7..10 => self.registration(memory),
            10 if self.rng.chance(1, 2) => {
                Request::HoldMemory { hold: self.rng.chance(1, 2), in_place: self.rng.chance(1, 2) }
            }
            10 => Request::AllocNullMr { pd: self.some(Kind::Pd) },
            11 => Request::DeregMr { mr: self.some(Kind::Mr) },
            12 => Request::FreeDm { dm: self.some(Kind::Dm) },
            13 => {
                let number = self.odd() % 8;
                let object = self.of(&[ImportObject::Pd(number), ImportObject::Mr(number), ImportObject::Dm(number)]);
                Request::Import { token: self.token(), object }
            }
            14 => Request::AllocMw { pd: self.some(Kind::Pd), mw_type: self.of(MwType::ALL) },
            15 => Request::DeallocMw { mw: self.some(Kind::Mw) },
            16 => Request::CreateChannel,
            17 => Request::DestroyChannel { channel: self.some(Kind::Channel) },
            18 | 19 => {
                let (channel, entries) = (self.some(Kind::Channel), self.size(1 << 20));
                let channel = self.rng.chance(1, 2).then_some(channel);
                Request::CreateCq(CqInitAttr { entries, channel, cookie: self.odd64(), vector: self.odd() })
            }
            20 => Request::ResizeCq { cq: self.some(Kind::Cq), entries: self.size(4096) },
            21 => Request::RetireCq { cq: self.some(Kind::Cq) },
            22 => Request::DestroyCq { cq: self.some(Kind::Cq) },
            23 => Request::OpenXrcd {
                with_file: self.rng.chance(1, 2),
                flags: self.of(&[0, libc::O_CREAT, libc::O_EXCL]),
            },
            24 => Request::CloseXrcd { xrcd: self.some(Kind::Xrcd) },
            25 => Request::CreateTarget { xrcd: self.some(Kind::Xrcd), event_cookie: 1 },
            26 => Request::OpenQp { xrcd: self.some(Kind::Xrcd), qpn: self.some(Kind::Qpn), event_cookie: 2 },
            27 => self.shared_receive_queue(),
            28 => Request::ModifySrq { srq: self.some(Kind::Srq), limit: Some(self.odd()) },
            29 => Request::ResizeSrq { srq: self.some(Kind::Srq), max_wr: self.size(4096) },
            30 => Request::QuerySrq { srq: self.some(Kind::Srq) },
            31 => Request::DestroySrq { srq: self.some(Kind::Srq) },
            32..35 => self.queue_pair(),
            35 => Request::DropQps { qps: (0..self.rng.below(70)).map(|_| self.some(Kind::Qp)).collect() },
            36..40 => {
                let ((attr, mask), qp) = (self.modify(), self.some(Kind::Qp));
                match self.rng.chance(1, 4) {
                    true => Request::ModifyQpWithoutReply { qp, attr, mask },
                    false => Request::ModifyQp { qp, attr, mask },
                }
            }
            40 => Request::QueryQp { qp: self.some(Kind::Qp) },
            41 => Request::DestroyQp { qp: self.some(Kind::Qp) },
            42 => Request::AttachMcast { qp: self.some(Kind::Qp), gid: self.gid() },
            43 => Request::DetachMcast { qp: self.some(Kind::Qp), gid: self.gid() },
            44 => Request::CreateAh { pd: self.some(Kind::Pd), attr: self.ah() },
            45 => Request::DestroyAh { ah: self.some(Kind::Ah) },
            46 => {
                let channel = self.odd() % 4;
                self.learn(Kind::CmChannel, channel);
                match self.rng.chance(3, 4) {
                    true => Request::CmChannel { channel },
                    false => Request::CmCloseChannel { channel },
                }
            }
            _ => Request::Cm { commands: (0..self.rng.between(1, 5)).map(|_| self.command()).collect() },
        }
    }
}
