//! The network namespaces in which a worker listens and connects, and which rules of the configuration hold there.

use super::token::PollToken;
use crate::config::{Checked, PlaceRules, within};
use crate::hold::SynQueue;
use crate::socket_owner::SocketTable;
use crate::sys::{self, EventFlags, Poll};
use std::io::Result;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A namespace in which this worker listens and connects.
#[derive(Debug)]
pub struct NetworkPlace {
    /// The namespace; `None`: that of the process.
    pub namespace: Option<Arc<OwnedFd>>,
    /// Listeners of this worker here: IPv4, IPv6.
    pub listeners: Vec<OwnedFd>,
    /// This worker's held SYNs here; `None`: the kernel answers them at once.
    pub queue: Option<SynQueue>,
    /// The sockets of programs here; `None`: their users cannot be found.
    pub sockets: Option<SocketTable>,
    /// Accepted sockets have keepalives: rules of nf_tables would forget connections without packets.
    pub keep_alive: bool,
    /// Indices of the configuration's `take`s here.
    pub takes: Vec<usize>,
    /// Indices of the configuration's `serve`s here.
    pub serves: Vec<usize>,
}

impl NetworkPlace {
    /// Whether servers here have this address.
    pub(super) fn serves(&self, config: &Checked, ip: IpAddr) -> bool {
        self.serves.iter().any(|serve| config.serves[*serve].iter().any(|prefix| within(ip, *prefix)))
    }

    /// The first rule `[[take]]` here that names a server.
    pub(super) fn named(&self, config: &Checked, server: SocketAddr) -> Option<usize> {
        self.takes.iter().copied().find(|take| {
            let (prefixes, ranges) = &config.takes[*take];
            let named = ranges.iter().any(|(first, last)| (*first..=*last).contains(&server.port()));
            named && prefixes.iter().any(|prefix| within(server.ip(), *prefix))
        })
    }
}

/// All namespaces of a worker.
#[derive(Debug)]
pub(super) struct NetworkPlaces {
    places: Vec<NetworkPlace>,
    /// The namespace of the process, to which the thread returns.
    own: Arc<OwnedFd>,
    /// No connection is accepted until [`NetworkPlaces::resume`].
    paused: bool,
}

impl NetworkPlaces {
    pub(super) fn new(places: Vec<NetworkPlace>, own: Arc<OwnedFd>) -> Self {
        Self { places, own, paused: false }
    }

    /// A place by its index.
    pub(super) fn get(&self, at: usize) -> &NetworkPlace {
        &self.places[at]
    }

    /// Goes by other rules from now on; a place without any keeps its listeners.
    pub(super) fn set_rules(&mut self, rules: Vec<PlaceRules>) {
        for (place, PlaceRules { takes, serves }) in self.places.iter_mut().zip(rules) {
            (place.takes, place.serves) = (takes, serves);
        }
    }

    /// Watches the listeners and the queues of SYNs.
    ///
    /// # Errors
    /// Of `epoll_ctl`.
    pub(super) fn watch(&self, poll: &Poll) -> Result<()> {
        for (place, queue) in self.places.iter().enumerate() {
            if let Some(queue) = &queue.queue {
                poll.add(queue, EventFlags::IN, PollToken::Syns(place).to_bits())?;
            }
        }
        self.each_listener(|listener, token| poll.add(listener, EventFlags::IN, token))
    }

    fn each_listener(&self, change: impl Fn(&OwnedFd, u64) -> Result<()>) -> Result<()> {
        for (at, place) in self.places.iter().enumerate() {
            for (which, listener) in place.listeners.iter().enumerate() {
                change(listener, PollToken::Listener(at, which).to_bits())?;
            }
        }
        Ok(())
    }

    /// Accepts nothing for now.
    pub(super) fn pause(&mut self, poll: &Poll) {
        self.paused = true;
        self.listen_for(poll, EventFlags::empty());
    }

    /// Whether nothing is accepted for now.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Accepts again after a pause.
    pub(super) fn resume(&mut self, poll: &Poll) {
        if std::mem::take(&mut self.paused) {
            self.listen_for(poll, EventFlags::IN);
        }
    }

    fn listen_for(&self, poll: &Poll, events: EventFlags) {
        if let Err(e) = self.each_listener(|listener, token| poll.change(listener, events, token)) {
            crate::log(format_args!("a listener cannot be watched: {e}"));
        }
    }

    /// Runs `make` in a place's namespace.
    ///
    /// # Errors
    /// Of `make`, and of `setns`.
    pub(super) fn enter<T>(&self, at: usize, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(namespace) = &self.places[at].namespace else { return make() };
        sys::enter_namespace(namespace)?;
        let made = make();
        sys::enter_namespace(&self.own)?;
        made
    }

    /// The index of the place that serves an address, by longest prefix.
    pub(super) fn serving(&self, config: &Checked, ip: IpAddr) -> Option<usize> {
        let serves = self.places.iter().enumerate();
        let serves = serves.flat_map(|(at, place)| place.serves.iter().map(move |serve| (at, *serve)));
        let prefixes = serves.flat_map(|(at, serve)| config.serves[serve].iter().map(move |prefix| (at, *prefix)));
        prefixes.filter(|(_, prefix)| within(ip, *prefix)).max_by_key(|(_, prefix)| prefix.1).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProxyConfig;

    fn place(takes: &[usize], serves: &[usize]) -> NetworkPlace {
        let (takes, serves) = (takes.to_vec(), serves.to_vec());
        NetworkPlace {
            namespace: None,
            listeners: Vec::new(),
            queue: None,
            sockets: None,
            keep_alive: false,
            takes,
            serves,
        }
    }

    #[test]
    fn only_what_a_policy_of_the_place_names_is_taken() {
        let config = ProxyConfig::parse(
            "name='a'\nlisten='10.0.0.1:7400'\nkeys='k'\n[[take]]\nto=['10.0.0.0/8']\nports='80'\n\
             [[take]]\nto=['fd00::/64']\nports='1-65535'",
        )
        .unwrap();
        let take = |takes: &[usize], server: &str| place(takes, &[]).named(&config, server.parse().unwrap());
        assert_eq!(take(&[0, 1], "10.0.0.2:80"), Some(0));
        assert_eq!(take(&[0, 1], "[fd00::1]:9"), Some(1));
        assert_eq!(take(&[1], "10.0.0.2:80"), None, "another place");
        assert_eq!(take(&[0, 1], "10.0.0.2:81"), None, "another port");
        assert_eq!(take(&[0, 1], "127.0.0.1:80"), None, "the listener itself");
    }

    #[test]
    fn the_place_with_the_longest_prefix_serves_an_address() {
        let config = ProxyConfig::parse(
            "name='a'\nlisten='10.0.0.1:7400'\nkeys='k'\n[[serve]]\nto=['10.0.0.0/8']\n[[serve]]\nto=['10.1.0.0/16']",
        )
        .unwrap();
        let own = Arc::new(std::fs::File::open("/proc/thread-self/ns/net").unwrap().into());
        let places = NetworkPlaces::new(vec![place(&[], &[0]), place(&[], &[1])], own);
        let serving = |ip: &str| places.serving(&config, ip.parse().unwrap());
        assert_eq!([serving("10.2.0.1"), serving("10.1.0.1"), serving("11.0.0.1")], [Some(0), Some(1), None]);
        assert!(places.get(1).serves(&config, "10.1.0.1".parse().unwrap()));
        assert!(!places.get(1).serves(&config, "10.2.0.1".parse().unwrap()));
    }
}
