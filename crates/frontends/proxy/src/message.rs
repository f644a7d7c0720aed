//! Messages of the control channel between two proxies, and those between the threads of one proxy.
//!
//! On the wire: four bytes of length (little-endian), then postcard. A message of more than [`MESSAGE_BYTES`] or one
//! that cannot be read ends the channel.

use crate::config::{Checked, EncryptLinks, PlaceRules};
use crate::peer_loss::PeerLoss;
use crate::worker::{StreamRecord, WorkerSnapshot};
use burst_relay::{ChannelSecret, LinkHello, WindowOf};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Longest message: a batch with the data of all its places, or a hello with all windows.
pub const MESSAGE_BYTES: usize = 32 << 20;
/// Version of the control messages.
pub const CONTROL_VERSION: u32 = 1;
/// A feature bit: windows that grow.
pub const GROWS: u64 = 2;
/// A feature bit: queue pairs that carry encrypted bytes.
const ENCRYPTS: u64 = 4;
/// A feature bit: no queue pairs that carry others.
const DEMANDS_ENCRYPTION: u64 = 8;
/// Feature bits of every configuration: 1, urgent data.
const FEATURES: u64 = 1;

/// Feature bits of this side.
pub fn features(config: &Checked) -> u64 {
    let grows = if config.window_max > config.window { GROWS } else { 0 };
    let encrypts = match config.config.encrypt {
        EncryptLinks::Only | EncryptLinks::On => ENCRYPTS | DEMANDS_ENCRYPTION,
        EncryptLinks::Agree => ENCRYPTS,
        EncryptLinks::Off => 0,
    };
    FEATURES | grows | encrypts
}

/// Whether queue pairs between this side and a peer carry encrypted bytes. Both sides find the same.
///
/// # Errors
/// A sentence: one side demands what the other one does not offer.
pub fn encrypts(own: u64, peers: u64) -> Result<bool, String> {
    match ((own | peers) & DEMANDS_ENCRYPTION != 0, own & ENCRYPTS != 0, peers & ENCRYPTS != 0) {
        (false, ..) => Ok(false),
        (true, true, true) => Ok(true),
        (true, _, false) => {
            Err("it does not offer encryption, which this proxy demands (encrypt = \"on\" or \"only\")".into())
        }
        (true, false, true) => Err("it demands encryption, which is off here (encrypt = \"off\")".into()),
    }
}

/// What a proxy says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// [`CONTROL_VERSION`].
    pub version: u32,
    /// Feature bits; both ends use those that both have.
    pub features: u64,
    /// Its name, which its certificate must carry.
    pub name: String,
    /// Random for each peer and start, and another one after the sender has given up the peer. Another number than before
    /// means that the sender knows nothing of earlier links and streams.
    pub session: u64,
    /// Threads that relay.
    pub workers: u32,
    /// Where its control channel listens.
    pub address: SocketAddr,
    /// Prefixes of the servers that it reaches: address and bits.
    pub serves: Vec<(IpAddr, u8)>,
    /// It takes no new streams.
    pub draining: bool,
}

/// A message of the control channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlMessage {
    /// First in each direction.
    Introduce(Introduction),
    /// The heartbeat, each second.
    Ping,
    /// Where a worker listens for queue pairs, and what a request must carry. Port 0: no RDMA there.
    Rdma {
        /// The worker.
        worker: u32,
        /// Its listener.
        address: SocketAddr,
        /// Random.
        token: [u8; 16],
    },
    /// [`LinkHello`] of the stream protocol.
    LinkHello {
        /// It is for the control channel itself, not for a queue pair.
        by_channel: bool,
        /// `LinkHello::to_bytes`.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A batch of the stream protocol, all data inside.
    Batch {
        /// The link.
        link: u32,
        /// The attempt to which it belongs.
        attempt: u64,
        /// The message.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The side that does not dial says that a link's transport is broken.
    Broken {
        /// The link.
        link: u32,
        /// The attempt that is broken.
        attempt: u64,
    },
    /// It takes no new streams from now on.
    Draining,
}

/// A peer that has introduced itself, for a worker.
#[derive(Clone, Debug)]
pub struct PeerUp {
    /// Its number in this process.
    pub peer: usize,
    /// What it said.
    pub introduction: Introduction,
    /// Whether this side dials.
    pub dials: bool,
    /// What the peer's requests for queue pairs must carry.
    pub token: [u8; 16],
    /// Whether queue pairs carry encrypted bytes.
    pub encrypts: bool,
    /// The secret of the channel.
    pub secret: ChannelSecret,
}

/// What the control thread sends to a worker.
#[derive(Debug)]
pub enum Command {
    /// The configuration was read again: it, and the rules of each place.
    Policy {
        /// The configuration.
        config: Arc<Checked>,
        /// By place.
        rules: Vec<PlaceRules>,
        /// Gets a word when the worker goes by them.
        done: Sender<()>,
    },
    /// A peer is there, perhaps again.
    PeerUp(PeerUp),
    /// The channel of a peer works, or not.
    ControlChannel {
        /// The peer.
        peer: usize,
        /// Whether it works.
        up: bool,
    },
    /// The peer's process has ended, or does not answer: its streams are reset.
    PeerGone {
        /// The peer.
        peer: usize,
        /// What happened to it.
        why: PeerLoss,
    },
    /// [`ControlMessage::Rdma`] of a peer; `None`: no RDMA.
    Rdma {
        /// The peer.
        peer: usize,
        /// Its worker.
        worker: u32,
        /// Listener and token.
        at: Option<(SocketAddr, [u8; 16])>,
    },
    /// [`ControlMessage::LinkHello`]
    LinkHello {
        /// The peer.
        peer: usize,
        /// For the control channel.
        by_channel: bool,
        /// What it says.
        hello: LinkHello,
    },
    /// [`ControlMessage::Batch`]
    Batch {
        /// The peer.
        peer: usize,
        /// The link.
        link: u32,
        /// The attempt.
        attempt: u64,
        /// The message.
        bytes: Vec<u8>,
    },
    /// [`ControlMessage::Broken`]
    Broken {
        /// The peer.
        peer: usize,
        /// The link.
        link: u32,
        /// The attempt.
        attempt: u64,
    },
    /// A peer takes no new streams.
    PeerDraining(usize),
    /// Take no new streams.
    Drain,
    /// Break the queue pairs: for tests of resumption.
    BreakQueuePairs,
    /// How many connections are open.
    CountOpen(Sender<usize>),
    /// Show streams and counters.
    Show(Sender<WorkerSnapshot>),
    /// Show the streams that ended in error, oldest first.
    ShowFailures(Sender<Vec<StreamRecord>>),
}

impl Command {
    /// Bytes that it takes while it waits for its worker.
    pub fn waiting_bytes(&self) -> usize {
        let behind = match self {
            Command::Batch { bytes, .. } => bytes.len(),
            Command::LinkHello { hello, .. } => hello.windows.len() * size_of::<WindowOf>(),
            _ => 0,
        };
        size_of::<Command>() + behind
    }
}

/// What a worker sends to the control thread.
#[derive(Debug)]
pub enum Report {
    /// Send this to the peer.
    ToPeer(usize, ControlMessage),
    /// The worker listens for queue pairs there; port 0: no RDMA.
    Listening {
        /// The worker.
        worker: u32,
        /// The port.
        port: u16,
    },
    /// A link can carry streams, or not.
    PeerLink {
        /// The peer.
        peer: usize,
        /// Number of the link.
        link: u32,
        /// Whether it can.
        up: bool,
    },
    /// The peer broke the protocol: close its channel.
    PeerFault(usize, String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProxyConfig;

    #[test]
    fn both_sides_agree_about_encryption_or_refuse() {
        let bits = |word: &str| {
            let text = format!("name='a'\nlisten='10.0.0.1:7400'\nkeys='k'\n{word}");
            features(&ProxyConfig::parse(&text).unwrap())
        };
        let (on, agree, off) = (bits("encrypt='on'"), bits(""), bits("encrypt='off'"));
        let earlier = FEATURES | GROWS;
        for (one, other, agreed) in [
            (on, on, Some(true)),
            (on, agree, Some(true)),
            (agree, agree, Some(false)),
            (agree, off, Some(false)),
            (off, off, Some(false)),
            (agree, earlier, Some(false)),
            (on, off, None),
            (on, earlier, None),
        ] {
            assert_eq!((encrypts(one, other).ok(), encrypts(other, one).ok()), (agreed, agreed), "{one} {other}");
        }
        assert!(encrypts(on, off).unwrap_err().contains("does not offer encryption"));
        assert!(encrypts(off, on).unwrap_err().contains("is off here"));
    }
}
