//! The table of keys. A new key needs a row here, a variant of [`KeyId`] and a field in [`crate::Config`]; flags, variables, the
//! file and the document are derived from the table.
//!
//! The values are looked up by [`NumberKey`] and [`TextKey`], which the compiler checks: a misspelt key, or a key of the other
//! type, does not compile.

use crate::value::ValueKind;
use burst_base::RtoMode;

/// A key, as an index of [`KEYS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyId {
    /// `socket`.
    Socket,
    /// `socket_mode`.
    SocketMode,
    /// `port`.
    Port,
    /// `workers`.
    Workers,
    /// `spin`.
    Spin,
    /// `window`.
    Window,
    /// `cc`.
    Cc,
    /// `cc_standard`.
    CcStandard,
    /// `cc_burst`.
    CcBurst,
    /// `cc_loopback`.
    CcLoopback,
    /// `selective_repeat`.
    SelectiveRepeat,
    /// `rto`.
    Rto,
    /// `urma_lanes`.
    UrmaLanes,
    /// `urma_caqm`.
    UrmaCaqm,
    /// `urma_hold`.
    UrmaHold,
    /// `gpu`.
    Gpu,
    /// `packet_ring`.
    PacketRing,
    /// `idle_exit`.
    IdleExit,
    /// `ready_fd`.
    ReadyFd,
    /// `end_with_fd`.
    EndWithFd,
    /// `user_share`.
    UserShare,
    /// `user_reserve`.
    UserReserve,
    /// `account_by`.
    AccountBy,
    /// `account_depth`.
    AccountDepth,
    /// `subuid_file`.
    SubuidFile,
    /// `lend`.
    Lend,
    /// `guarded`.
    Guarded,
    /// `state_dir`.
    StateDir,
    /// `metrics`.
    Metrics,
    /// `log.level`.
    LogLevel,
    /// `log.format`.
    LogFormat,
}

/// One setting.
#[derive(Debug)]
pub struct ConfigKey {
    /// Its index in the table.
    pub id: KeyId,
    /// Name and path in the TOML file (`log.level` is `level` in `[log]`).
    pub name: &'static str,
    /// Long flag without dashes.
    pub flag: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// Type and range.
    pub kind: ValueKind,
    /// May be given several times (an array in the file, words in the variable).
    pub many: bool,
    /// Default as a user would write it; empty when `help` describes it.
    pub default: &'static str,
    /// Purpose of the key, in one line.
    pub help: &'static str,
}

/// Maximum number of workers.
const WORKERS: u64 = burst_shm::layout::WORKER_MAX as u64;
/// Maximum number of lanes of URMA.
const URMA_LANES: u64 = burst_host::URMA_LANES_MAX as u64;

/// Every key, in the order of help and document.
pub const KEYS: &[ConfigKey] = &[
    ConfigKey {
        id: KeyId::Socket,
        name: "socket",
        flag: "socket",
        env: "BURST_SOCKET",
        kind: ValueKind::Path,
        many: false,
        default: "",
        help: "Control socket; default for root /run/burst/burstd.sock, else $XDG_RUNTIME_DIR/burst/burstd.sock or /tmp/burst-UID/burstd.sock",
    },
    ConfigKey {
        id: KeyId::SocketMode,
        name: "socket_mode",
        flag: "socket-mode",
        env: "BURST_SOCKET_MODE",
        kind: ValueKind::Mode,
        many: false,
        default: "0666",
        help: "Users that may connect, as permission bits of the socket (0600: only the daemon's user)",
    },
    ConfigKey {
        id: KeyId::Port,
        name: "port",
        flag: "port",
        env: "BURST_PORT",
        kind: ValueKind::Text,
        many: true,
        default: "udp",
        help: "Port to serve, once per device: udp (chooses the interface), udp:dev=eth0, packet:dev=eth0 (whole frames, needs CAP_NET_RAW), impair:loss=1%/udp:dev=eth0",
    },
    ConfigKey {
        id: KeyId::Workers,
        name: "workers",
        flag: "workers",
        env: "BURST_WORKERS",
        kind: ValueKind::Count { min: 1, max: WORKERS },
        many: false,
        default: "1",
        help: "Number of worker threads; each can use one core",
    },
    ConfigKey {
        id: KeyId::Spin,
        name: "spin",
        flag: "spin",
        env: "BURST_SPIN",
        kind: ValueKind::Duration { max_ns: 1_000_000_000 },
        many: false,
        default: "50us",
        help: "How long an idle worker spins before it sleeps",
    },
    ConfigKey {
        id: KeyId::Window,
        name: "window",
        flag: "window",
        env: "BURST_WINDOW",
        kind: ValueKind::Bytes { min: 4 << 10, max: 1 << 30 },
        many: false,
        default: "1MiB",
        help: "Maximum number of unacknowledged bytes to one peer address, all queue pairs of a worker together; a value under 64KiB is raised to 64KiB",
    },
    ConfigKey {
        id: KeyId::Cc,
        name: "cc",
        flag: "cc",
        env: "BURST_CC",
        kind: ValueKind::Controller,
        many: false,
        // Not written here, so that a choice can be distinguished from the default: see `CcTable`.
        default: "",
        help: "Congestion control: an algorithm, with parameters where they shall differ from its defaults: dcqcn:rpg_ai_rate=100M,rpg_time_reset=55us; default auto, which chooses for each peer",
    },
    ConfigKey {
        id: KeyId::CcStandard,
        name: "cc_standard",
        flag: "cc-standard",
        env: "BURST_CC_STANDARD",
        kind: ValueKind::Controller,
        many: false,
        default: "",
        help: "Congestion control for adapters and other implementations of RoCEv2, instead of that of `cc`",
    },
    ConfigKey {
        id: KeyId::CcBurst,
        name: "cc_burst",
        flag: "cc-burst",
        env: "BURST_CC_BURST",
        kind: ValueKind::Controller,
        many: false,
        default: "",
        help: "Congestion control for other Burst daemons, instead of that of `cc`; both agree on one (docs/congestion.md)",
    },
    ConfigKey {
        id: KeyId::CcLoopback,
        name: "cc_loopback",
        flag: "cc-loopback",
        env: "BURST_CC_LOOPBACK",
        kind: ValueKind::Controller,
        many: false,
        default: "",
        help: "Congestion control for the daemon's own addresses, instead of that of `cc`",
    },
    ConfigKey {
        id: KeyId::SelectiveRepeat,
        name: "selective_repeat",
        flag: "selective-repeat",
        env: "BURST_SELECTIVE_REPEAT",
        kind: ValueKind::Switch,
        many: false,
        default: "on",
        help: "Repeat only lost packets of RC and XRC queue pairs, with peers whose daemon does so, too; other peers get the standard packets",
    },
    ConfigKey {
        id: KeyId::Rto,
        name: "rto",
        flag: "rto",
        env: "BURST_RTO",
        kind: ValueKind::Choice(RtoMode::SETTINGS),
        many: false,
        default: "shared",
        help: "Waits of loss recovery: shared where peers sleep or share processors (time-outs from 1 ms, probes from 200 us); dedicated where they do not (100 us, 20 us)",
    },
    ConfigKey {
        id: KeyId::UrmaLanes,
        name: "urma_lanes",
        flag: "urma-lanes",
        env: "BURST_URMA_LANES",
        kind: ValueKind::Count { min: 1, max: URMA_LANES },
        many: false,
        default: "1",
        help: "Lanes of URMA to each peer (docs/urma.md), the fewer of both hosts': channels with a window each that leave by UDP source ports of their own, so that switches and adapters spread them over paths and queues",
    },
    ConfigKey {
        id: KeyId::UrmaCaqm,
        name: "urma_caqm",
        flag: "urma-caqm",
        env: "BURST_URMA_CAQM",
        kind: ValueKind::Switch,
        many: false,
        default: "off",
        help: "C-AQM for channels of URMA instead of the congestion control of their paths: only where all switches answer it (docs/urma-transport.md)",
    },
    ConfigKey {
        id: KeyId::UrmaHold,
        name: "urma_hold",
        flag: "urma-hold",
        env: "BURST_URMA_HOLD",
        kind: ValueKind::Switch,
        many: false,
        default: "on",
        help: "Hold UDP port 4792 of each address while no program of the daemon uses URMA, so that no other user takes it; off for programs that have nodes of their own at the daemon's addresses (docs/urma-programs.md)",
    },
    ConfigKey {
        id: KeyId::Gpu,
        name: "gpu",
        flag: "gpu",
        env: "BURST_GPU",
        kind: ValueKind::Switch,
        many: false,
        default: "off",
        help: "Let programs register memory of their GPUs, which no GPU has run yet (docs/gpu.md)",
    },
    ConfigKey {
        id: KeyId::PacketRing,
        name: "packet_ring",
        flag: "packet-ring",
        env: "BURST_PACKET_RING",
        kind: ValueKind::Switch,
        many: false,
        default: "off",
        help: "Each worker keeps the heads of its last 32,768 packets (4 MiB), so that burst why QPN --pcap FILE gives the packets of a queue pair up to its failure",
    },
    ConfigKey {
        id: KeyId::IdleExit,
        name: "idle_exit",
        flag: "idle-exit",
        env: "BURST_IDLE_EXIT",
        kind: ValueKind::Duration { max_ns: 86_400_000_000_000 },
        many: false,
        default: "0",
        help: "End when no program has been connected for this long; 0: never",
    },
    ConfigKey {
        id: KeyId::ReadyFd,
        name: "ready_fd",
        flag: "ready-fd",
        env: "BURST_READY_FD",
        kind: ValueKind::Count { min: 0, max: 1 << 20 },
        many: false,
        default: "",
        help: "Descriptor that gets the line \"ready\" once the daemon serves; default none",
    },
    ConfigKey {
        id: KeyId::EndWithFd,
        name: "end_with_fd",
        flag: "end-with-fd",
        env: "BURST_END_WITH_FD",
        kind: ValueKind::Count { min: 0, max: 1 << 20 },
        many: false,
        default: "",
        help: "Descriptor of a pipe's reading end: once no process has the writing end, the daemon ends as by SIGTERM, so that it does not outlive its starter; default none",
    },
    ConfigKey {
        id: KeyId::UserShare,
        name: "user_share",
        flag: "user-share",
        env: "BURST_USER_SHARE",
        kind: ValueKind::Count { min: 1, max: 100 },
        many: false,
        default: "50",
        help: "Percentage of each resource that the programs of one user may use of what other users and the reserve leave; root and the daemon's user have no such limit",
    },
    ConfigKey {
        id: KeyId::UserReserve,
        name: "user_reserve",
        flag: "user-reserve",
        env: "BURST_USER_RESERVE",
        kind: ValueKind::Count { min: 0, max: 99 },
        many: false,
        default: "10",
        help: "Percentage of each resource that only root and the daemon's user may use",
    },
    ConfigKey {
        id: KeyId::AccountBy,
        name: "account_by",
        flag: "account-by",
        env: "BURST_ACCOUNT_BY",
        kind: ValueKind::Choice(&["user", "cgroup"]),
        many: false,
        default: "user",
        help: "Owners of shares: user (each user id), or cgroup (each control group; for containers whose users have the same id)",
    },
    ConfigKey {
        id: KeyId::AccountDepth,
        name: "account_depth",
        flag: "account-depth",
        env: "BURST_ACCOUNT_DEPTH",
        kind: ValueKind::Count { min: 0, max: 64 },
        many: false,
        default: "2",
        help: "With account_by = cgroup: a group's account is its ancestor's at this depth below the root, so that who makes groups gets no more; 0: each group has one",
    },
    ConfigKey {
        id: KeyId::SubuidFile,
        name: "subuid_file",
        flag: "subuid-file",
        env: "BURST_SUBUID_FILE",
        kind: ValueKind::Path,
        many: false,
        default: "/etc/subuid",
        help: "Users' further ids (subuid(5)): a process with an id of a user's range uses the user's share; /dev/null: each id is a user",
    },
    ConfigKey {
        id: KeyId::Lend,
        name: "lend",
        flag: "lend",
        env: "BURST_LEND",
        kind: ValueKind::Choice(&["off", "same-user"]),
        many: false,
        default: "off",
        help: "Programs that may run the engine themselves and share the daemon's addresses (lent mode): off, or same-user: those of the daemon's own user, which must trust each other; ports of kind udp only, for 16 programs less one for each worker",
    },
    ConfigKey {
        id: KeyId::Guarded,
        name: "guarded",
        flag: "guarded",
        env: "BURST_GUARDED",
        kind: ValueKind::Switch,
        many: false,
        default: "off",
        help: "Run under a supervisor process that keeps the sockets and starts a successor when the daemon falls",
    },
    ConfigKey {
        id: KeyId::StateDir,
        name: "state_dir",
        flag: "state-dir",
        env: "BURST_STATE_DIR",
        kind: ValueKind::Path,
        many: false,
        default: "",
        help: "Directory for the crash reports of a guarded daemon; default $STATE_DIRECTORY, for root /var/lib/burst, else $XDG_STATE_HOME/burst or ~/.local/state/burst",
    },
    ConfigKey {
        id: KeyId::Metrics,
        name: "metrics",
        flag: "metrics",
        env: "BURST_METRICS",
        kind: ValueKind::MetricsPlace,
        many: false,
        default: "",
        help: "Show metrics over HTTP (docs/metrics.md): 127.0.0.1:9317 shows totals to anybody who reaches the port, unix:/run/burst/metrics.sock shows each user what is its own, too; default: not",
    },
    ConfigKey {
        id: KeyId::LogLevel,
        name: "log.level",
        flag: "log-level",
        env: "BURST_LOG_LEVEL",
        kind: ValueKind::Choice(&["error", "warn", "info", "debug", "trace"]),
        many: false,
        default: "info",
        help: "Least severe line that is logged; `burst log` changes it at run time",
    },
    ConfigKey {
        id: KeyId::LogFormat,
        name: "log.format",
        flag: "log-format",
        env: "BURST_LOG_FORMAT",
        kind: ValueKind::Choice(&["text", "json"]),
        many: false,
        default: "text",
        help: "Format of log lines; text is entries of the journal where stderr is the journal",
    },
];

/// A key whose value is a number.
#[derive(Clone, Copy, Debug)]
pub struct NumberKey(KeyId);

/// A key whose value is a text.
#[derive(Clone, Copy, Debug)]
pub struct TextKey(KeyId);

impl NumberKey {
    /// The key `id`. In a constant, a key of the other type does not compile.
    pub const fn new(id: KeyId) -> NumberKey {
        assert!(KEYS[id as usize].kind.is_number(), "the value of this key is a text");
        NumberKey(id)
    }
    /// Its index in the table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TextKey {
    /// The key `id`. In a constant, a key of the other type does not compile.
    pub const fn new(id: KeyId) -> TextKey {
        assert!(!KEYS[id as usize].kind.is_number(), "the value of this key is a number");
        TextKey(id)
    }
    /// Its index in the table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

// The variants of KeyId are the indices of the table.
const _: () = {
    let mut index = 0;
    while index < KEYS.len() {
        assert!(KEYS[index].id as usize == index, "a row of KEYS is not at the place of its KeyId");
        index += 1;
    }
};
