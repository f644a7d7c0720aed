//! The table of keys: add a row here and a field in [`super::Config`]; everything else follows.

use super::value::ValueKind;

/// One setting.
#[derive(Debug)]
pub struct ConfigKey {
    /// Name, which is also the path in the TOML file (`log.level` is `level` in `[log]`).
    pub name: &'static str,
    /// Long flag without dashes.
    pub flag: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// Type and range.
    pub kind: ValueKind,
    /// May be given several times (an array in the file, words in the variable).
    pub many: bool,
    /// Default as a user would write it; empty when `help` tells.
    pub default: &'static str,
    /// One line.
    pub help: &'static str,
}

/// Most workers.
const WORKERS: u64 = burst_shm::layout::WORKER_MAX as u64;

/// Every key, in the order of help and document.
pub const KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "socket",
        flag: "socket",
        env: "BURST_SOCKET",
        kind: ValueKind::Path,
        many: false,
        default: "",
        help: "Control socket; default for root /run/burst/burstd.sock, else $XDG_RUNTIME_DIR/burst/burstd.sock or /tmp/burst-UID/burstd.sock",
    },
    ConfigKey {
        name: "socket_mode",
        flag: "socket-mode",
        env: "BURST_SOCKET_MODE",
        kind: ValueKind::Mode,
        many: false,
        default: "0666",
        help: "Who may connect, as permission bits of the socket (0600: only the daemon's user)",
    },
    ConfigKey {
        name: "port",
        flag: "port",
        env: "BURST_PORT",
        kind: ValueKind::Text,
        many: true,
        default: "udp",
        help: "Port to serve, once per device: udp (chooses the interface), udp:dev=eth0, packet:dev=eth0 (whole frames, needs CAP_NET_RAW), impair:loss=1%/udp:dev=eth0",
    },
    ConfigKey {
        name: "workers",
        flag: "workers",
        env: "BURST_WORKERS",
        kind: ValueKind::Count { min: 1, max: WORKERS },
        many: false,
        default: "1",
        help: "Worker threads, each of which can fill one core",
    },
    ConfigKey {
        name: "spin",
        flag: "spin",
        env: "BURST_SPIN",
        kind: ValueKind::Duration { max_ns: 1_000_000_000 },
        many: false,
        default: "50us",
        help: "How long a worker with nothing to do spins before it sleeps",
    },
    ConfigKey {
        name: "window",
        flag: "window",
        env: "BURST_WINDOW",
        kind: ValueKind::Bytes { min: 4 << 10, max: 1 << 30 },
        many: false,
        default: "1MiB",
        help: "Most unacknowledged bytes of one queue pair",
    },
    ConfigKey {
        name: "idle_exit",
        flag: "idle-exit",
        env: "BURST_IDLE_EXIT",
        kind: ValueKind::Duration { max_ns: 86_400_000_000_000 },
        many: false,
        default: "0",
        help: "End when no program has been connected for so long; 0: never",
    },
    ConfigKey {
        name: "ready_fd",
        flag: "ready-fd",
        env: "BURST_READY_FD",
        kind: ValueKind::Count { min: 0, max: 1 << 20 },
        many: false,
        default: "",
        help: "Descriptor that gets the line \"ready\" once the daemon serves; default none",
    },
    ConfigKey {
        name: "log.level",
        flag: "log-level",
        env: "BURST_LOG_LEVEL",
        kind: ValueKind::Choice(&["error", "warn", "info", "debug", "trace"]),
        many: false,
        default: "info",
        help: "Least severe line that is logged",
    },
    ConfigKey {
        name: "log.format",
        flag: "log-format",
        env: "BURST_LOG_FORMAT",
        kind: ValueKind::Choice(&["text", "json"]),
        many: false,
        default: "text",
        help: "Shape of log lines",
    },
];
