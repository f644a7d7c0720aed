//! Pools outside the accounts of a daemon: what hosts on the network, peers and scrapers fill, and what the connections of users
//! take of a proxy.
//!
//! A pool says how many places it has, whose places count together, and what happens when all are taken. A pool is made for a row
//! of this table, and has the row's places, or fewer where the system or the configuration gives fewer. Documents and tests are
//! made from the table; each row names the test that drives the pool to its limit beside others.
//!
//! Places of users are shared as those of a daemon are: [`crate::UserPool`].

/// The part of what other users and the reserve leave that one user may have, and the part that is for root alone: those of
/// [`crate::Policy`].
const SHARE_PERCENT: usize = 50;
const RESERVE_PERCENT: usize = 10;

/// Whose places in a pool count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceOwner {
    /// An IPv4 address, or the first 64 bits of an IPv6 address; over a socket in the file system a user.
    Source,
    /// A user of the host, with the ids that were given to it (`/etc/subuid`).
    User,
    /// None: what comes when the pool is full is handled without a place.
    NoOwner,
}

impl PlaceOwner {
    /// The owner, for documents.
    pub const fn words(self) -> &'static str {
        match self {
            PlaceOwner::Source => "its source",
            PlaceOwner::User => "its user",
            PlaceOwner::NoOwner => "none",
        }
    }
}

macro_rules! pools {
    ($($variant:ident, $name:literal, $words:literal, $of:literal, $places:expr, $owner:ident, $of_one:expr, $full:literal, $test:literal;)+) => {
        /// A pool that others than users fill.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum OpenPool { $(#[doc = $words] $variant),+ }

        impl OpenPool {
            /// Every pool, in table order.
            pub const ALL: &'static [OpenPool] = &[$(OpenPool::$variant),+];
            /// Stable name.
            pub const fn name(self) -> &'static str { match self { $(OpenPool::$variant => $name),+ } }
            /// What has a place, in the plural.
            pub const fn words(self) -> &'static str { match self { $(OpenPool::$variant => $words),+ } }
            /// What has such a pool.
            pub const fn of(self) -> &'static str { match self { $(OpenPool::$variant => $of),+ } }
            /// Number of places.
            pub const fn places(self) -> usize { match self { $(OpenPool::$variant => $places),+ } }
            /// Whose places count together.
            pub const fn owner(self) -> PlaceOwner { match self { $(OpenPool::$variant => PlaceOwner::$owner),+ } }
            /// Most places of one owner.
            pub const fn of_one(self) -> usize { match self { $(OpenPool::$variant => $of_one),+ } }
            /// What happens when there is no place.
            pub const fn when_full(self) -> &'static str { match self { $(OpenPool::$variant => $full),+ } }
            /// The test that drives it to its limit: a file below `crates`, and the function in it.
            pub const fn test(self) -> (&'static str, &'static str) { match self { $(OpenPool::$variant => split($test)),+ } }
        }
    };
}

/// Most places of one user, where the others use none.
const fn of_one_user(places: usize) -> usize {
    (places - places / 100 * RESERVE_PERCENT) / 100 * SHARE_PERCENT
}

/// The words before and after `::`.
const fn split(test: &'static str) -> (&'static str, &'static str) {
    let bytes = test.as_bytes();
    let mut at = 0;
    while bytes[at] != b':' {
        at += 1;
    }
    let (file, rest) = test.split_at(at);
    (file, rest.split_at(2).1)
}

pools! {
    ReceivedMad, "received_mads", "management datagrams that wait for the connection manager", "a worker", 4096, Source, 4096,
        "the oldest of a source that has more gives way; messages of connections displace others",
        "hosts/gsi/src/mad_queue.rs::a_full_queue_of_one_source_leaves_others_room";
    HandedMad, "handed_mads", "management datagrams on the way to the worker whose they are", "a worker", 4096, NoOwner, 4096,
        "dropped and counted (`mad_queue_full`); emptied in each pass",
        "hosts/engine/src/receive/handover.rs::as_many_mads_wait_as_the_agent_keeps";
    Scraper, "scrapers", "connections to the server of metrics", "a server", 16, Source, 4,
        "a random one of the same source, or of the one with the most, ends",
        "hosts/metrics/src/server.rs::scrapers_that_stall_take_no_ones_place";
    ProxyChannel, "proxy_channels", "control channels of a proxy on which no peer has introduced itself", "a proxy", 64, Source, 8,
        "a random one of the same source, or of the one with the most, ends; peers' addresses have places of their own",
        "frontends/proxy/src/control/front.rs::a_source_has_its_share_and_leaves_the_others_theirs";
    ProxySocket, "proxy_sockets", "sockets of connections, two for each that a program opens and one for each of a peer, and fewer with a lower `LimitNOFILE=`",
        "a worker of a proxy", 1 << 20, User, of_one_user(1 << 20),
        "a program's SYN is dropped, so that its TCP tries again, or its connection is reset; a peer's stream goes by TCP",
        "frontends/proxy/src/worker/shares.rs::a_user_with_all_it_may_have_leaves_others_sockets";
    ProxySyn, "proxy_syns", "SYNs of programs that are held until the server's answer is known",
        "a worker of a proxy", 8192, User, of_one_user(8192),
        "the SYN passes at once: the program is connected before the server has answered",
        "frontends/proxy/src/worker/shares.rs::a_user_whose_syns_fill_its_share_leaves_others_places";
    ProxyMemory, "proxy_memory", "bytes of first rings and windows, and of buffers of connections by TCP, and fewer as `memory` and `workers` say",
        "a worker of a proxy", 1 << 46, User, of_one_user(1 << 46),
        "the connection goes by TCP, with small buffers",
        "frontends/proxy/src/worker/shares.rs::a_user_that_fills_its_share_of_the_memory_leaves_others_streams";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_has_a_test_that_drives_it_to_its_limit() {
        for pool in OpenPool::ALL {
            let (file, function) = pool.test();
            let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {path}: {e}", pool.name()));
            let begin = text.find(&format!("#[test]\n    fn {function}()"));
            let body = &text[begin.unwrap_or_else(|| panic!("{}: no test {function} in {file}", pool.name()))..];
            let body = &body[..body.find("\n    }\n").expect("an end")];
            assert!(
                body.contains(&format!("OpenPool::{pool:?}")),
                "{function} does not name the row of {}",
                pool.name()
            );
        }
        println!("{} rows of pools outside the accounts, each with a test", OpenPool::ALL.len());
    }

    #[test]
    fn no_owner_has_more_places_than_there_are() {
        for pool in OpenPool::ALL {
            assert!((1..=pool.places()).contains(&pool.of_one()), "{pool:?}");
            assert!(pool.owner() != PlaceOwner::NoOwner || pool.of_one() == pool.places(), "{pool:?}");
        }
    }
}
