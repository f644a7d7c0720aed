//! The ten exercises. Each has a file.

mod atomics;
mod congestion;
mod connect;
mod incast;
mod keys;
mod loss;
mod not_ready;
mod path_mtu;
mod ping_pong;
mod shared_receives;

pub use atomics::Atomics;
pub use congestion::Congestion;
pub use connect::Connect;
pub use incast::Incast;
pub use keys::RegionKeys;
pub use loss::Loss;
pub use not_ready::NotReady;
pub use path_mtu::PathMtu;
pub use ping_pong::PingPong;
pub use shared_receives::SharedReceives;
