//! Queue pairs made ahead of their creation, so that a program that creates many alike does not wait for each.
//!
//! Creation is a question to the daemon. Whoever has created some queue pairs with the same attributes will create more:
//! each question asks for a quarter as many again as were created so far (`AHEAD_SHARE`), up to [`QPS_AT_ONCE`], and the
//! next creations take from what is there. A program that creates three queue pairs gets three; one that creates
//! thousands asks sixty times less often.
//!
//! What lies in stock uses its domain and queues, so it is given back before one of these ends ([`Stock::forget`]), when
//! the daemon is short of room, and when other wishes become more usual (`SHELVES_MAX`). Giving back waits for nobody:
//! nothing was ever posted to these queue pairs, and no packet can reach them.

use crate::context::Context;
use crate::door::{EIO, ENOMEM, Outcome};
use crate::registry::lock;
use burst_base::verbs::{QpCap, QpType};
use burst_control::{QPS_AT_ONCE, QpGrant, QpName, QueuePlace, Request, Response};

/// One is made ahead for so many created.
const AHEAD_SHARE: u32 = 4;
/// Most bytes of queues in one stock.
const AHEAD_BYTES: usize = 1 << 20;
/// Different wishes that have a stock: more than most programs have threads with completion queues of their own. With fewer
/// shelves than such threads, each creation would empty another thread's shelf.
const SHELVES_MAX: usize = 64;

/// What makes queue pairs alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Protection domain.
    pub pd: u32,
    /// Service.
    pub qp_type: QpType,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Shared receive queue.
    pub srq: Option<u32>,
    /// Capacities wanted.
    pub cap: QpCap,
}

/// A queue pair at the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// What the daemon granted.
    pub grant: QpGrant,
    /// The library's names of it.
    pub name: QpName,
}

#[derive(Debug)]
struct Shelf {
    wish: Wish,
    created: u32,
    ready: Vec<Made>,
}

/// See the module. The most recently used shelf is the last.
#[derive(Debug, Default)]
pub struct Stock {
    shelves: Vec<Shelf>,
}

fn bytes_of(grant: &QpGrant) -> usize {
    let bytes = |q: &QueuePlace| q.entries as usize * q.stride as usize;
    bytes(&grant.sq) + grant.rq.as_ref().map_or(0, bytes)
}

impl Stock {
    /// A queue pair as wished, from the stock or fresh from the daemon.
    ///
    /// # Errors
    /// As the daemon says, or ENOMEM.
    pub fn take(&mut self, context: &Context, wish: &Wish) -> Outcome<Made> {
        self.bring_forward(context, wish);
        let Some(shelf) = self.shelves.last_mut() else { return Err(EIO) };
        shelf.created = shelf.created.saturating_add(1);
        if let Some(made) = shelf.ready.pop() {
            return Ok(made);
        }
        let ahead = (shelf.created / AHEAD_SHARE) as usize;
        let result = ask(context, wish, 1 + ahead.min(QPS_AT_ONCE - 1));
        let made = match result {
            // Somebody else may have use for what lies here.
            Err(ENOMEM) if self.forget(context, |_| true) > 0 => ask(context, wish, 1)?,
            other => other?,
        };
        self.put_away(context, made)
    }

    /// Makes the wish's shelf the last one.
    fn bring_forward(&mut self, context: &Context, wish: &Wish) {
        match self.shelves.iter().position(|s| s.wish == *wish) {
            Some(at) => self.shelves[at..].rotate_left(1),
            None => {
                if self.shelves.len() == SHELVES_MAX {
                    give_back(context, self.shelves.remove(0).ready);
                }
                self.shelves.push(Shelf { wish: *wish, created: 0, ready: Vec::new() });
            }
        }
    }

    /// Keeps all but the first, which is returned.
    fn put_away(&mut self, context: &Context, mut made: Vec<Made>) -> Outcome<Made> {
        // The first in line is the last of the vector.
        made.reverse();
        let first = made.pop().ok_or(EIO)?;
        let keep = AHEAD_BYTES / bytes_of(&first.grant).max(1);
        if made.len() > keep {
            let surplus = made.drain(..made.len() - keep).collect();
            give_back(context, surplus);
        }
        if let Some(shelf) = self.shelves.last_mut() {
            shelf.ready = made;
        }
        Ok(first)
    }

    /// Gives back what uses something that is about to end. Returns how many queue pairs that were.
    pub fn forget(&mut self, context: &Context, whose: impl Fn(&Wish) -> bool) -> usize {
        let mut count = 0;
        for shelf in self.shelves.iter_mut().filter(|s| whose(&s.wish)) {
            count += shelf.ready.len();
            shelf.created = 0;
            give_back(context, std::mem::take(&mut shelf.ready));
        }
        count
    }
}

/// Asks the daemon for `count` queue pairs; at least one comes.
fn ask(context: &Context, wish: &Wish, count: usize) -> Outcome<Vec<Made>> {
    let names: Vec<QpName> = (0..count)
        .map_while(|_| {
            let cookie = context.qps.reserve()?;
            Some(QpName { cookie, event_cookie: lock(&context.sources).reserve() })
        })
        .collect();
    if names.is_empty() {
        return Err(ENOMEM);
    }
    let Wish { pd, qp_type, send_cq, recv_cq, srq, cap } = *wish;
    let request = Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq, cap, names: names.clone() };
    let grants = match context.ask(&request) {
        Ok(Response::Qps(grants)) if !grants.is_empty() && grants.len() <= names.len() => Ok(grants),
        Ok(_) => Err(EIO),
        Err(e) => Err(e),
    };
    let used = grants.as_ref().map_or(0, Vec::len);
    names[used..].iter().for_each(|name| context.qps.remove(name.cookie));
    Ok(grants?.into_iter().zip(names).map(|(grant, name)| Made { grant, name }).collect())
}

fn give_back(context: &Context, made: Vec<Made>) {
    for some in made.chunks(QPS_AT_ONCE) {
        // A daemon that is gone has no queue pairs.
        let _ = context.say(&Request::DropQps { qps: some.iter().map(|m| m.grant.qp).collect() });
        some.iter().for_each(|m| context.qps.remove(m.name.cookie));
    }
}
