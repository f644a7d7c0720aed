//! What each user of a daemon uses of its limited resources, and how much each may use.
//!
//! A [`Ledger`] knows the capacity of every [`Resource`] and how much of it is in use. An [`Account`] belongs to one user (or
//! one control group): [`Account::charge`] charges amounts to it and returns a [`Charge`], which gives them back when it is
//! dropped. An object keeps its charge, so that no way to end an object can forget to give back.
//!
//! The limit of an account moves with the use of the others, as the dynamic thresholds of shared switch buffers do (Choudhury and
//! Hahne, IEEE/ACM ToN 1998): an account may use a fixed part ([`Policy::share_percent`]) of what the other accounts and the
//! reserve leave. With a part of one half, a single user gets half of the capacity, and whatever a user does, as much as that
//! user holds stays free for others. Privileged accounts (root, and the user who runs the daemon) are limited by the capacity
//! alone, and the reserve ([`Policy::reserve_percent`]) is for them. Of what is lost and not refused they have a share, too
//! ([`Resource::binds_privileged`]).
//!
//! | module | contents |
//! |---|---|
//! | [`resource`] | the resources |
//! | [`account`] | ledger, accounts and charges |
//! | [`busiest`] | the most that an account uses of any one object |
//! | [`meter`] | use that changes by itself |
//! | [`open`] | pools outside the accounts of a daemon: of hosts, peers, scrapers, and of a proxy's users |
//! | [`pool`] | places of one object, shared in the same way |
//! | [`ring`] | records, of which no account pushes out another's |
//! | [`subordinate`] | ids that a user may use beside its own |
//! | [`time`] | time that threads spend on an account |
//! | [`user_pool`] | places of a pool of [`open`], shared among users |
//! | [`work`] | work that workers do for an account |

#![forbid(unsafe_code)]

pub mod account;
pub mod busiest;
pub mod meter;
pub mod open;
pub mod pool;
pub mod resource;
pub mod ring;
pub mod subordinate;
pub mod time;
pub mod user_pool;
pub mod work;

pub use account::{Account, AccountId, AccountUse, Charge, Exhausted, Ledger, PlaceCharge, Policy};
pub use busiest::PlaceUse;
pub use meter::Meter;
pub use open::{OpenPool, PlaceOwner};
pub use pool::SharePool;
pub use resource::{Capacities, Resource, Scope};
pub use ring::AccountRing;
pub use subordinate::SubordinateIds;
pub use time::TimeSpent;
pub use user_pool::{PoolCharge, PoolOwner, UserPool};
pub use work::{WorkCount, WorkSum};
