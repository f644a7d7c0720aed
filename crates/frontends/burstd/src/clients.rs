//! The clients, in one queue for each account: a user with thousands of connections delays only that user's own requests.
//!
//! Each account has an epoll instance of its own. A pass takes a bounded number of events from every account that has some, and
//! serves a bounded number of requests for each. What is left is found by the next pass, after the other accounts' requests. An
//! idle connection costs a pass nothing.

use crate::conversation::Conversation;
use burst_base::Nanos;
use burst_host::{Session, SessionNumber, SessionTable};
use burst_ledger::{Account, AccountId, Charge, Resource};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of descriptors of one account that are looked at in one pass.
const EVENTS_AT_ONCE: usize = 64;
/// How long a client may take from the connection to its hello.
pub const HELLO_MAX: Nanos = Nanos::from_ms(10_000);

/// So many clients that have connected are remembered in any case until their time for a hello is over.
const GREETINGS_MIN: usize = 64;

/// The number of a client's session, which is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientToken(SessionNumber);

/// The clients of one account.
struct AccountQueue {
    account: Account,
    epoll: OwnedFd,
    /// What the instance costs.
    _charge: Charge,
    clients: usize,
    /// Number of turns that the account has had.
    turns: usize,
}

/// The clients of the daemon.
#[derive(Default)]
pub struct Clients {
    list: Vec<Conversation>,
    /// Index in `list` by token.
    indices: HashMap<ClientToken, usize>,
    queues: HashMap<AccountId, AccountQueue>,
    /// Clients with rings for commands, by process.
    rings: HashMap<u32, BTreeSet<ClientToken>>,
    /// Clients whose rings for commands are not marked as idle.
    awake: Vec<ClientToken>,
    /// Clients with a request that has steps left.
    unfinished: BTreeSet<ClientToken>,
    /// When clients that have not said hello are disconnected, in order; among them clients that have left or said hello, at most
    /// twice as many as there are clients.
    greetings: VecDeque<(Nanos, ClientToken)>,
}

/// What is ready at the clients of one account.
#[derive(Debug, Default)]
pub struct ReadyClients {
    /// Indices of clients that have sent something, in ascending order.
    pub readable: Vec<usize>,
    /// Indices of clients whose processes have exited, in ascending order.
    pub exited: Vec<usize>,
    /// Number of the account's turn.
    pub turn: usize,
}

impl Clients {
    /// All clients.
    pub fn all(&self) -> &[Conversation] {
        &self.list
    }

    /// All clients, to change.
    pub fn all_mut(&mut self) -> &mut [Conversation] {
        &mut self.list
    }

    /// A client, to change.
    pub fn get_mut(&mut self, index: usize) -> &mut Conversation {
        &mut self.list[index]
    }

    /// Adds a client that has just connected.
    ///
    /// # Errors
    /// The system's: descriptors or watches are exhausted. The client comes back: what waits in its socket must not be closed by
    /// the caller's thread ([`Conversation::close`]).
    pub fn add(&mut self, mut client: Conversation, now: Nanos) -> Result<(), Box<(Conversation, io::Error)>> {
        let token = ClientToken(client.session().number());
        if let Err(error) = self.watch(&client, token) {
            self.remove_if_empty(client.session().account().id());
            return Err(Box::new((client, error)));
        }
        client.token = Some(token);
        self.indices.insert(token, self.list.len());
        self.list.push(client);
        if self.greetings.len() >= 2 * self.list.len().max(GREETINGS_MIN) {
            self.forget_greetings();
        }
        self.greetings.push_back((now + HELLO_MAX, token));
        Ok(())
    }

    /// Watches the socket of a client in the queue of its account.
    fn watch(&mut self, client: &Conversation, token: ClientToken) -> io::Result<()> {
        let account = client.session().account().clone();
        let queue = match self.queues.get_mut(account.id()) {
            Some(queue) => queue,
            None => {
                let charge = account.charge(&[(Resource::Descriptor, 1)]).map_err(io::Error::other)?;
                let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let queue = AccountQueue { account, epoll, _charge: charge, clients: 0, turns: 0 };
                self.queues.entry(queue.account.id().clone()).or_insert(queue)
            }
        };
        let data = epoll::EventData::new_u64(token.0.0 << 1);
        epoll::add(&queue.epoll, client.fd(), data, epoll::EventFlags::IN)?;
        queue.clients += 1;
        Ok(())
    }

    /// Forgets the clients that have left or said hello: there may be many more of them within [`HELLO_MAX`] than clients.
    fn forget_greetings(&mut self) {
        let Clients { list, indices, greetings, .. } = self;
        greetings.retain(|(_, token)| indices.get(token).is_some_and(|index| !list[*index].session().has_said_hello()));
    }

    /// Removes a client. The caller ends its session.
    pub fn remove(&mut self, index: usize) -> Conversation {
        let gone = self.list.swap_remove(index);
        if let Some(token) = gone.token {
            self.indices.remove(&token);
            self.unfinished.remove(&token);
        }
        if let Some(token) = self.list.get(index).and_then(|moved| moved.token) {
            self.indices.insert(token, index);
        }
        let pid = gone.session().process().pid;
        if let Some(rings) = self.rings.get_mut(&pid) {
            gone.token.map(|token| rings.remove(&token));
            if rings.is_empty() {
                self.rings.remove(&pid);
            }
        }
        if let Some(queue) = self.queues.get_mut(gone.session().account().id()) {
            // A child of the program may hold the socket: the watch does not end with our descriptor.
            let _ = epoll::delete(&queue.epoll, gone.fd());
            if let Some(exit) = gone.process_exit().filter(|_| gone.watches_exit) {
                let _ = epoll::delete(&queue.epoll, exit);
            }
            queue.clients -= 1;
        }
        self.remove_if_empty(gone.session().account().id());
        gone
    }

    /// Removes the queue of an account without clients. The others are not looked at: this is called for each client that leaves.
    fn remove_if_empty(&mut self, account: &AccountId) {
        if self.queues.get(account).is_some_and(|queue| queue.clients == 0) {
            self.queues.remove(account);
        }
    }

    /// A descriptor for each account, to wait on: readable when one of the account's clients is.
    pub fn fds(&self) -> impl Iterator<Item = (&Account, BorrowedFd<'_>)> {
        self.queues.values().map(|queue| (&queue.account, queue.epoll.as_fd()))
    }

    /// What is ready at an account's clients at the begin of its turn, at most [`EVENTS_AT_ONCE`] descriptors.
    pub fn ready(&mut self, account: &AccountId) -> ReadyClients {
        let mut ready = ReadyClients::default();
        let Some(queue) = self.queues.get_mut(account) else { return ready };
        queue.turns = queue.turns.wrapping_add(1);
        ready.turn = queue.turns;
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted wait is a pass in which nothing is ready.
        let _ = epoll::wait(&queue.epoll, spare_capacity(&mut events), Some(&now));
        for event in &events {
            let data = event.data.u64();
            // A client that was removed has no index any more.
            let Some(index) = self.indices.get(&ClientToken(SessionNumber(data >> 1))) else { continue };
            let list = if data & 1 == 0 { &mut ready.readable } else { &mut ready.exited };
            list.push(*index);
        }
        ready.readable.sort_unstable();
        ready.exited.sort_unstable();
        ready
    }

    /// To be called after a client was served: watches its process once the process is known, and its ring while it is in use.
    pub fn served(&mut self, index: usize) {
        let client = &mut self.list[index];
        if !client.watches_exit
            && let (Some(exit), Some(token)) = (client.process_exit(), client.token)
            && let Some(queue) = self.queues.get(client.session().account().id())
        {
            let data = epoll::EventData::new_u64(token.0.0 << 1 | 1);
            // Without the watch the end of the socket tells that the program has gone.
            client.watches_exit = epoll::add(&queue.epoll, exit, data, epoll::EventFlags::IN).is_ok();
        }
        match (client.token, client.is_unfinished()) {
            (Some(token), true) => drop(self.unfinished.insert(token)),
            (Some(token), false) => drop(self.unfinished.remove(&token)),
            (None, _) => {}
        }
        if client.is_awake || !client.session().has_command_ring() {
            return;
        }
        client.is_awake = true;
        client.session_mut().stay_awake();
        self.awake.extend(client.token);
        let of_process = self.rings.entry(client.session().process().pid).or_default();
        of_process.extend(client.token);
    }

    /// Marks the rings for commands as idle, so that the next command wakes the daemon. Returns whether some clients want a turn
    /// in any case: [`Clients::with_work`].
    pub fn idle_rings(&mut self) -> bool {
        let mut still_awake = Vec::new();
        for token in std::mem::take(&mut self.awake) {
            let Some(index) = self.indices.get(&token).copied() else { continue };
            if self.list[index].session_mut().try_idle() {
                self.list[index].is_awake = false;
            } else {
                still_awake.push(token);
            }
        }
        self.awake = still_awake;
        !self.awake.is_empty() || !self.unfinished.is_empty()
    }

    /// Clients whose rings [`Clients::idle_rings`] has not marked as idle, and those with a request that has steps left, with
    /// their accounts.
    pub fn with_work(&self) -> Vec<(Account, ClientToken)> {
        let index = |token| Some((self.indices.get(token)?, *token));
        let clients = self.awake.iter().chain(&self.unfinished).filter_map(index);
        clients.map(|(index, token)| (self.list[*index].session().account().clone(), token)).collect()
    }

    /// The index of a client; `None` if it was removed. Indices change when clients are removed.
    pub fn index_of(&self, token: ClientToken) -> Option<usize> {
        self.indices.get(&token).copied()
    }

    /// Indices of the clients with rings for commands whose process is that of a client.
    pub fn rings_beside(&self, index: usize) -> Vec<usize> {
        let tokens = self.rings.get(&self.list[index].session().process().pid).into_iter().flatten();
        tokens.filter_map(|token| self.indices.get(token).copied()).collect()
    }

    /// Indices of the clients whose time for a hello is over, from the last to the first.
    pub fn silent(&mut self, now: Nanos) -> Vec<usize> {
        let mut silent = Vec::new();
        while self.greetings.front().is_some_and(|(at, _)| *at <= now) {
            let index = self.greetings.pop_front().and_then(|(_, token)| self.indices.get(&token).copied());
            silent.extend(index.filter(|index| !self.list[*index].session().has_said_hello()));
        }
        silent.sort_unstable_by(|a, b| b.cmp(a));
        silent
    }

    /// When [`Clients::silent`] must be called next.
    pub fn silent_at(&self) -> Option<Nanos> {
        self.greetings.front().map(|(at, _)| *at)
    }

    /// Returns the memory of clients that have left to the heap.
    pub fn shrink(&mut self) {
        let Clients { list, indices, queues, rings, awake, greetings, unfinished: _ } = self;
        list.shrink_to_fit();
        indices.shrink_to_fit();
        queues.shrink_to_fit();
        rings.shrink_to_fit();
        awake.shrink_to_fit();
        greetings.shrink_to_fit();
    }

    /// How many clients are remembered until their time for a hello is over.
    #[cfg(test)]
    pub fn greetings(&self) -> usize {
        self.greetings.len()
    }

    /// Removes all clients.
    pub fn take_all(&mut self) -> Vec<Conversation> {
        std::mem::take(self).list
    }
}

impl SessionTable for Clients {
    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn each(&mut self, call: &mut dyn FnMut(&mut Session)) {
        self.list.iter_mut().for_each(|client| call(client.session_mut()));
    }

    fn find(&mut self, number: SessionNumber) -> Option<&mut Session> {
        let index = self.indices.get(&ClientToken(number))?;
        Some(self.list[*index].session_mut())
    }
}
