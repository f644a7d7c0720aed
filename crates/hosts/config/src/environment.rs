//! Environment variables that are no keys of the daemon: libraries and commands read them. `docs/configuration.md` lists them,
//! and `scripts/tidy` compares the list with the code.

/// One variable.
#[derive(Debug)]
pub struct ProgramVariable {
    /// Its name.
    pub name: &'static str,
    /// Who reads it.
    pub reader: &'static str,
    /// Its values, as a person writes them.
    pub values: &'static str,
    /// What it does, and what holds without it.
    pub help: &'static str,
}

/// All of them, in the order of the document. The last ones are set by Burst itself.
pub const VARIABLES: &[ProgramVariable] = &[
    ProgramVariable {
        name: "BURST_SOCKET",
        reader: "libraries, `burst`",
        values: "path",
        help: "Socket of the daemon to use; nothing else is tried. Without it: the places of docs/running.md in their order",
    },
    ProgramVariable {
        name: "BURST_MODE",
        reader: "libraries",
        values: "`daemon`, `inprocess`, `lent`",
        help: "Where the engine runs: in a daemon (default), in the program, or in the program on a daemon's addresses (docs/in-process.md). Set-user-ID programs ignore it",
    },
    ProgramVariable {
        name: "BURST_TRUST_SOCKET_OF",
        reader: "libraries, `burst`",
        values: "user ids, separated by commas",
        help: "Users whose daemons are used beside those of root and of the program's own user (docs/running.md). Set-user-ID programs ignore it",
    },
    ProgramVariable {
        name: "BURST_EXPLAIN",
        reader: "libraries",
        values: "`1`",
        help: "A refused call prints the daemon's sentence on stderr, a failed completion its cause and cure. Default: the daemon's log and `burst why` alone have them",
    },
    ProgramVariable {
        name: "BURST_QUIET",
        reader: "libraries",
        values: "`1`",
        help: "Suppresses the sentences that libraries print once: no daemon was found, the daemon has ended",
    },
    ProgramVariable {
        name: "BURST_LAB_DIR",
        reader: "`burst lab`",
        values: "directory",
        help: "Directory of the exercises' sockets, logs and state; default `$XDG_RUNTIME_DIR/burst-lab`, else `/tmp/burst-lab-UID`",
    },
    ProgramVariable {
        name: "BURST_SWAP",
        reader: "libraries",
        values: "`off`",
        help: "Off: no page is exchanged when memory is registered; the daemon reaches it by /proc/PID/mem (docs/running.md). Default: pages are exchanged for shared ones",
    },
    ProgramVariable {
        name: "BURST_REGISTER",
        reader: "libraries, engine in the program",
        values: "`shared`",
        help: "Registered memory is mapped a second time, so that pages which the program unmaps, moves or replaces stay the region's, as if pinned. Default: it is reached by its address",
    },
    ProgramVariable {
        name: "BURST_KEEPER",
        reader: "libburst-inprocess.so.1",
        values: "`off`",
        help: "Off: no thread serves while the program does not poll: peers then wait for its polls, and librdmacm makes no connections. Lent mode refuses it",
    },
    ProgramVariable {
        name: "BURST_PORT",
        reader: "libburst-inprocess.so.1, liburma.so.0",
        values: "as the key `port`",
        help: "Port of an engine in the program. Of the other variables of keys, those of the daemon's socket, shares and supervisor have no effect there, and `BURST_WORKERS` is 1",
    },
    ProgramVariable {
        name: "BURST_LOG_LEVEL",
        reader: "libburst-inprocess.so.1",
        values: "as the key `log.level`",
        help: "Least severe line that an engine in the program writes to stderr; default warn",
    },
    ProgramVariable {
        name: "BURST_SPIN",
        reader: "`burst-proxy`",
        values: "as the key `spin`",
        help: "The same for a proxy with the engine inside; default 0, because spinning would not see the sockets of programs",
    },
    ProgramVariable {
        name: "BURST_IDLE_EXIT",
        reader: "`burst run`",
        values: "as the key `idle_exit`",
        help: "The same for the daemon that `burst run` starts; default 30s",
    },
    ProgramVariable {
        name: "BURST_URMA_LANES",
        reader: "liburma.so.0",
        values: "1 to 8",
        help: "Lanes to each peer of a node in the program; default 1. A node of the daemon has the key `urma_lanes`",
    },
    ProgramVariable {
        name: "BURST_URMA_TOPOLOGY",
        reader: "liburma.so.0",
        values: "addresses and networks, separated by commas",
        help: "Hosts that the map for `urma_ping` has beside those that are found (docs/urma-programs.md)",
    },
    ProgramVariable {
        name: "BURST_SUPERVISOR_FD",
        reader: "`burstd`",
        values: "number",
        help: "Set by the supervisor of `burstd --guarded`: descriptor of its socket",
    },
    ProgramVariable {
        name: "BURST_SUPERVISOR_REPORTS",
        reader: "`burstd`",
        values: "path",
        help: "Set by the supervisor of `burstd --guarded`: directory of the crash reports",
    },
];
