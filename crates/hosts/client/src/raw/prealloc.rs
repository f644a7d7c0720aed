//! Preallocated queue pairs: the daemon makes several for one request, and later creations use them without a request.
//!
//! Creating a queue pair costs a round trip to the daemon. A program that has created several queue pairs with the same
//! attributes usually creates more. Each request therefore asks for one more queue pair per `CREATED_PER_PREALLOC` created
//! so far, up to [`QPS_AT_ONCE`]. A program that creates three queue pairs gets exactly three; a program that creates
//! thousands sends a sixtieth of the requests.
//!
//! A preallocated queue pair uses its protection domain and its queues. It is released before one of these ends
//! ([`QpPrealloc::release`]), when the daemon is out of room, and when `POOLS_MAX` other sets of attributes were used since.
//! Releasing does not wait for the daemon: nothing was ever posted to these queue pairs, and no packet can reach them.

use super::RawContext;
use crate::error::{ClientError, Result};
use burst_control::{QPS_AT_ONCE, QpCookies, QpGrant, QpInitAttr, QueuePlace, Request, Response};

/// One queue pair is preallocated per this many created with the same attributes.
const CREATED_PER_PREALLOC: u32 = 4;
/// Most bytes of queues in one pool.
const POOL_BYTES_MAX: usize = 1 << 20;
/// Most sets of attributes that have a pool: more than most programs have threads with completion queues of their own. With
/// fewer pools than such threads, each creation would release another thread's pool.
const POOLS_MAX: usize = 64;

/// A queue pair that the daemon has made.
#[derive(Clone, Copy, Debug)]
pub struct PreallocQp {
    /// Its numbers, places and capacities.
    pub grant: QpGrant,
    /// The cookies that the library chose for it.
    pub name: QpCookies,
}

const NONE_MADE: ClientError = ClientError::Unexpected("no queue pair");

/// The queue pairs of one set of attributes.
#[derive(Debug)]
struct QpPool {
    init: QpInitAttr,
    /// Queue pairs that the program has created with these attributes.
    created: u32,
    /// Queue pairs that it has not created yet; the last is used first.
    ready: Vec<PreallocQp>,
}

/// The preallocated queue pairs of a context. The most recently used pool is the last.
#[derive(Debug, Default)]
pub struct QpPrealloc {
    pools: Vec<QpPool>,
}

fn bytes_of(grant: &QpGrant) -> usize {
    let bytes = |q: &QueuePlace| q.entries as usize * q.stride as usize;
    bytes(&grant.sq) + grant.rq.as_ref().map_or(0, bytes)
}

impl QpPrealloc {
    /// A queue pair with these attributes, from its pool or else from the daemon.
    ///
    /// # Errors
    /// The daemon's refusal; ENOMEM when there is no cookie left.
    pub fn take(&mut self, context: &RawContext, init: &QpInitAttr) -> Result<PreallocQp> {
        self.bring_forward(context, init);
        let Some(pool) = self.pools.last_mut() else { return Err(NONE_MADE) };
        pool.created = pool.created.saturating_add(1);
        if let Some(qp) = pool.ready.pop() {
            return Ok(qp);
        }
        let extra = (pool.created / CREATED_PER_PREALLOC) as usize;
        let made = match request(context, init, 1 + extra.min(QPS_AT_ONCE - 1)) {
            // The room may be taken by preallocated queue pairs with other attributes.
            Err(e) if e.errno() == libc::ENOMEM && self.release(context, |_| true) > 0 => request(context, init, 1)?,
            other => other?,
        };
        self.keep_all_but_first(context, made)
    }

    /// Makes the pool of these attributes the last one.
    fn bring_forward(&mut self, context: &RawContext, init: &QpInitAttr) {
        match self.pools.iter().position(|pool| pool.init == *init) {
            Some(at) => self.pools[at..].rotate_left(1),
            None => {
                if self.pools.len() == POOLS_MAX {
                    drop_qps(context, &self.pools.remove(0).ready);
                }
                self.pools.push(QpPool { init: *init, created: 0, ready: Vec::new() });
            }
        }
    }

    /// Puts all queue pairs but the first into the last pool, and returns the first.
    fn keep_all_but_first(&mut self, context: &RawContext, mut made: Vec<PreallocQp>) -> Result<PreallocQp> {
        // The pool is used from its end.
        made.reverse();
        let first = made.pop().ok_or(NONE_MADE)?;
        let keep = POOL_BYTES_MAX / bytes_of(&first.grant).max(1);
        if made.len() > keep {
            let surplus: Vec<PreallocQp> = made.drain(..made.len() - keep).collect();
            drop_qps(context, &surplus);
        }
        if let Some(pool) = self.pools.last_mut() {
            pool.ready = made;
        }
        Ok(first)
    }

    /// Releases the queue pairs whose attributes `matches` accepts. Returns how many they were.
    pub fn release(&mut self, context: &RawContext, matches: impl Fn(&QpInitAttr) -> bool) -> usize {
        let mut count = 0;
        for pool in self.pools.iter_mut().filter(|pool| matches(&pool.init)) {
            count += pool.ready.len();
            pool.created = 0;
            drop_qps(context, &std::mem::take(&mut pool.ready));
        }
        count
    }
}

/// Requests `count` queue pairs from the daemon, which makes at least one of them.
fn request(context: &RawContext, init: &QpInitAttr, count: usize) -> Result<Vec<PreallocQp>> {
    let names: Vec<QpCookies> = (0..count)
        .map_while(|_| {
            let cookie = context.send_slots.reserve()?;
            Some(QpCookies { cookie, event_cookie: context.event_cookie() })
        })
        .collect();
    if names.is_empty() {
        return Err(std::io::Error::from_raw_os_error(libc::ENOMEM).into());
    }
    let grants = match context.ask(&Request::CreateQp { init: *init, names: names.clone() }) {
        Ok(Response::Qps(grants)) if !grants.is_empty() && grants.len() <= names.len() => Ok(grants),
        Ok(_) => Err(NONE_MADE),
        Err(e) => Err(e),
    };
    let used = grants.as_ref().map_or(0, Vec::len);
    names[used..].iter().for_each(|name| context.send_slots.remove(name.cookie));
    Ok(grants?.into_iter().zip(names).map(|(grant, name)| PreallocQp { grant, name }).collect())
}

/// Ends queue pairs that the program has never seen, without waiting for the daemon.
fn drop_qps(context: &RawContext, qps: &[PreallocQp]) {
    for some in qps.chunks(QPS_AT_ONCE) {
        // An error means that the daemon has ended, and its queue pairs with it.
        let _ = context.send_without_reply(&Request::DropQps { qps: some.iter().map(|qp| qp.grant.qp).collect() });
        some.iter().for_each(|qp| context.send_slots.remove(qp.name.cookie));
    }
}
