//! Tables of nf_tables: messages that make chains, sets, counters and rules, and the expressions of rules.
//!
//! A table belongs to the netlink socket that makes it (`NFT_TABLE_F_OWNER`, Linux 5.12): no other process can change it, and
//! the kernel removes it with the socket, so also with the process. Numbers of attributes are those of
//! linux/netfilter/nf_tables.h.

use crate::counters::ProxyCounter;
use crate::netlink::{Attributes, NetfilterRequest, Netlink, RequestBatch, attribute};
use std::io::Result;

const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const NEW_ELEMENTS: u16 = 12;
const DELETE_ELEMENTS: u16 = 14;
const NEW_OBJECT: u16 = 18;
const GET_OBJECT: u16 = 19;
const OBJECT_COUNTER: u32 = 1;
const TABLE_OWNER: u32 = 2;
/// Most elements in one message: a list of them must be shorter than 64 KiB.
const ELEMENTS_MAX: usize = 1024;

/// Hooks of a chain (`enum nf_inet_hooks`).
pub const PREROUTING: u32 = 0;
/// The same.
pub const LOCAL_IN: u32 = 1;
/// The same.
pub const LOCAL_OUT: u32 = 3;
/// Priority of the table `mangle`.
pub const MANGLE: i32 = -150;

/// Flags of a set.
pub const SET_INTERVAL: u32 = 4;
/// Elements leave the set after a time.
pub const SET_TIMEOUT: u32 = 0x10;
/// Rules add and remove elements.
pub const SET_EVAL: u32 = 0x20;

/// Keys of `meta`.
pub const META_MARK: u32 = 3;
/// The same.
pub const META_IIF: u32 = 4;
/// The same.
pub const META_L4PROTO: u32 = 16;

/// The first 16 bytes of the registers, which also are the four registers from [`WORD_0`] on.
pub const REG_1: u32 = 1;
/// The next 16 bytes.
pub const REG_2: u32 = 2;
/// The first of 16 registers of four bytes.
pub const WORD_0: u32 = 8;

/// A header from which bytes are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderBase {
    /// Of IP.
    Network = 1,
    /// Of TCP.
    Transport = 2,
}

/// How `cmp` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equal.
    Equal = 0,
    /// Not equal.
    NotEqual = 1,
    /// Less or equal, of numbers in network order.
    AtMost = 3,
    /// Greater or equal, of numbers in network order.
    AtLeast = 5,
}

/// What a rule does with an element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetChange {
    /// Adds it, or begins its time anew. The rule ends if the set is full.
    Update = 1,
    /// Removes it.
    Delete = 2,
}

/// A set to make.
#[derive(Clone, Copy, Debug)]
pub struct SetForm {
    /// `SET_*`.
    pub flags: u32,
    /// Type of the keys, for programs that show it.
    pub kind: u32,
    /// Bytes of a key.
    pub key_len: u32,
    /// Most elements; 0: any number.
    pub size: u32,
    /// Milliseconds after which an element leaves; 0: never.
    pub timeout_ms: u64,
}

/// A request of nf_tables.
fn request(kind: u16, family: u8) -> NetfilterRequest {
    NetfilterRequest { subsystem: SUBSYSTEM, kind, family, resource: 0 }
}

/// Changes of one table that take effect together.
#[derive(Debug)]
pub struct TableBatch {
    batch: RequestBatch,
    family: u8,
    table: String,
}

impl TableBatch {
    /// Changes of a table of this family (`AF_INET`, `AF_INET6`).
    pub fn new(owner: &Netlink, family: i32, table: &str) -> Self {
        Self { batch: owner.batch(SUBSYSTEM), family: family as u8, table: table.into() }
    }

    fn message(&mut self, kind: u16, flags: i32, attributes: Attributes) {
        self.batch.message(request(kind, self.family), flags, attributes);
    }

    fn named(&self) -> Attributes {
        Attributes::new().text(1, &self.table)
    }

    /// Makes the table.
    pub fn make_table(&mut self) {
        self.message(NEW_TABLE, libc::NLM_F_CREATE, self.named().be32(2, TABLE_OWNER));
    }

    /// Makes a chain of this type at a hook.
    pub fn base_chain(&mut self, chain: &str, kind: &str, hook: u32, priority: i32) {
        let hook = Attributes::new().be32(1, hook).be32(2, priority as u32);
        let made = self.named().text(3, chain).nested(4, hook).be32(5, 1).text(7, kind);
        self.message(NEW_CHAIN, libc::NLM_F_CREATE, made);
    }

    /// Makes a chain to which rules jump.
    pub fn chain(&mut self, chain: &str) {
        self.message(NEW_CHAIN, libc::NLM_F_CREATE, self.named().text(3, chain));
    }

    /// Appends a rule.
    pub fn rule(&mut self, chain: &str, expressions: Attributes) {
        let made = self.named().text(2, chain).nested(4, expressions);
        self.message(NEW_RULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND, made);
    }

    /// Removes all rules of a chain.
    pub fn clear(&mut self, chain: &str) {
        self.message(DELETE_RULE, 0, self.named().text(2, chain));
    }

    /// Makes a set. Sets of one batch have different numbers.
    pub fn set(&mut self, set: &str, number: u32, form: SetForm) {
        let made = self.named().text(2, set).be32(3, form.flags).be32(4, form.kind).be32(5, form.key_len);
        let made = if form.size > 0 { made.nested(9, Attributes::new().be32(1, form.size)) } else { made };
        let made = made.be32(10, number);
        let made = if form.timeout_ms > 0 { made.be64(11, form.timeout_ms) } else { made };
        self.message(NEW_SET, libc::NLM_F_CREATE, made);
    }

    /// Empties a set.
    pub fn flush(&mut self, set: &str) {
        self.message(DELETE_ELEMENTS, 0, self.named().text(2, set));
    }

    /// Adds ranges to a set of intervals: the first key of each, and the first one behind it, if there is any.
    pub fn ranges(&mut self, set: &str, ranges: &[(Vec<u8>, Option<Vec<u8>>)]) {
        let element = |key: &[u8], flags: u32| {
            Attributes::new().nested(1, Attributes::new().nested(1, Attributes::new().bytes(1, key)).be32(3, flags))
        };
        let ends = ranges.iter().flat_map(|(first, behind)| {
            std::iter::once(element(first, 0)).chain(behind.as_ref().map(|key| element(key, 1)))
        });
        let ends: Vec<Attributes> = ends.collect();
        for part in ends.chunks(ELEMENTS_MAX) {
            let list = part.iter().cloned().fold(Attributes::new(), Attributes::with);
            self.message(NEW_ELEMENTS, libc::NLM_F_CREATE, self.named().text(2, set).nested(3, list));
        }
    }

    /// Makes a counter that rules can name.
    pub fn counter(&mut self, counter: ProxyCounter) {
        let made = self.named().text(2, counter.name()).be32(3, OBJECT_COUNTER).nested(4, Attributes::new());
        self.message(NEW_OBJECT, libc::NLM_F_CREATE, made);
    }

    /// Carries the changes out, all or none.
    pub fn commit(self, owner: &Netlink) -> Result<()> {
        owner.commit(self.batch)
    }
}

/// The packets of a counter.
pub fn counted(owner: &Netlink, family: i32, table: &str, counter: ProxyCounter) -> Result<u64> {
    let asked = Attributes::new().text(1, table).text(2, counter.name()).be32(3, OBJECT_COUNTER);
    let answer = owner.get(request(GET_OBJECT, family as u8), asked)?;
    let packets = attribute(&answer, 4).and_then(|data| attribute(data, 2)).and_then(|bytes| bytes.try_into().ok());
    packets.map(u64::from_be_bytes).ok_or_else(|| std::io::Error::other("a counter without a number"))
}

/// An expression by name.
pub fn expression(name: &str, data: Attributes) -> Attributes {
    Attributes::new().nested(1, Attributes::new().text(1, name).nested(2, data))
}

/// Loads into the first register, by which the next expression compares.
pub fn load_meta(key: u32) -> Attributes {
    expression("meta", Attributes::new().be32(1, REG_1).be32(2, key))
}

/// Loads bytes of a header.
pub fn load_payload(register: u32, base: HeaderBase, offset: u32, len: u32) -> Attributes {
    let data = Attributes::new().be32(1, register).be32(2, base as u32);
    expression("payload", data.be32(3, offset).be32(4, len))
}

/// Loads the control group (version 2) of the packet's socket that is `level` below the root.
pub fn load_control_group(level: u32) -> Attributes {
    const CGROUPV2: u32 = 3;
    expression("socket", Attributes::new().be32(1, CGROUPV2).be32(2, REG_1).be32(3, level))
}

/// Masks the first register.
pub fn masked(mask: &[u8]) -> Attributes {
    let data = |bytes: &[u8]| Attributes::new().bytes(1, bytes);
    let zero = vec![0; mask.len()];
    let words = Attributes::new().be32(1, REG_1).be32(2, REG_1).be32(3, mask.len() as u32);
    expression("bitwise", words.nested(4, data(mask)).nested(5, data(&zero)))
}

/// Goes on if the first register compares so.
pub fn when(relation: Relation, to: &[u8]) -> Attributes {
    let data = Attributes::new().be32(1, REG_1).be32(2, relation as u32);
    expression("cmp", data.nested(3, Attributes::new().bytes(1, to)))
}

/// Goes on if the first register has this value.
pub fn equal(to: &[u8]) -> Attributes {
    when(Relation::Equal, to)
}

/// Goes on if some of these flags of TCP are set.
pub fn when_any_flag(flags: u8) -> Attributes {
    load_payload(REG_1, HeaderBase::Transport, 13, 1).with(masked(&[flags])).with(when(Relation::NotEqual, &[0]))
}

/// Goes on with TCP.
pub fn when_tcp() -> Attributes {
    load_meta(META_L4PROTO).with(equal(&[libc::IPPROTO_TCP as u8]))
}

/// Goes on with a mark.
pub fn when_mark(mark: u32) -> Attributes {
    load_meta(META_MARK).with(equal(&mark.to_ne_bytes()))
}

/// Goes on if the source port is of a class.
pub fn when_port(classes: u32, class: u32) -> Attributes {
    let (mask, class) = ((classes - 1) as u16, class as u16);
    let port = load_payload(REG_1, HeaderBase::Transport, 0, 2);
    port.with(masked(&mask.to_be_bytes())).with(equal(&class.to_be_bytes()))
}

/// Goes on if the key in the registers is an element of a set, or with `is_in` false if it is none.
pub fn when_in(set: &str, is_in: bool) -> Attributes {
    expression("lookup", Attributes::new().text(1, set).be32(2, WORD_0).be32(5, u32::from(!is_in)))
}

/// Changes the element of the key in the registers.
pub fn change_set(set: &str, change: SetChange) -> Attributes {
    expression("dynset", Attributes::new().text(1, set).be32(3, change as u32).be32(4, WORD_0))
}

/// Puts bytes into a register.
pub fn put(register: u32, bytes: &[u8]) -> Attributes {
    expression("immediate", Attributes::new().be32(1, register).nested(2, Attributes::new().bytes(1, bytes)))
}

/// Marks the packet.
pub fn set_mark(mark: u32) -> Attributes {
    put(REG_2, &mark.to_ne_bytes()).with(expression("meta", Attributes::new().be32(2, META_MARK).be32(3, REG_2)))
}

/// Counts the packet.
pub fn count(counter: ProxyCounter) -> Attributes {
    expression("objref", Attributes::new().be32(1, OBJECT_COUNTER).text(2, counter.name()))
}

fn verdict(code: i32, chain: Option<&str>) -> Attributes {
    let verdict = Attributes::new().be32(1, code as u32);
    let verdict = chain.map_or_else(|| verdict.clone(), |chain| verdict.clone().text(2, chain));
    expression("immediate", Attributes::new().be32(1, 0).nested(2, Attributes::new().nested(2, verdict)))
}

/// Lets the packet go on, as far as this table is concerned.
pub fn accept() -> Attributes {
    verdict(1, None)
}

/// Drops the packet.
pub fn drop_packet() -> Attributes {
    verdict(0, None)
}

/// Goes back to the chain that jumped here.
pub fn go_back() -> Attributes {
    verdict(-5, None)
}

/// Goes on in another chain, and then behind this rule.
pub fn jump(chain: &str) -> Attributes {
    verdict(-3, Some(chain))
}

/// Goes on in another chain.
pub fn go_to(chain: &str) -> Attributes {
    verdict(-4, Some(chain))
}

/// Gives the packet to the listener at the address in the first register and the port in the second.
pub fn to_listener(family: i32) -> Attributes {
    expression("tproxy", Attributes::new().be32(1, family as u32).be32(2, REG_1).be32(3, REG_2))
}
