complete -c burstd -l config -d 'TOML file to read [default: $XDG_CONFIG_HOME/burst/burstd.toml, else /etc/burst/burstd.toml, if there]' -r
complete -c burstd -l socket -d 'Control socket; default for root /run/burst/burstd.sock, else $XDG_RUNTIME_DIR/burst/burstd.sock or /tmp/burst-UID/burstd.sock [env: BURST_SOCKET]' -r
complete -c burstd -l socket-mode -d 'Users that may connect, as permission bits of the socket (0600: only the daemon\'s user) [env: BURST_SOCKET_MODE, default: 0666]' -r
complete -c burstd -l port -d 'Port to serve, once per device: udp (chooses the interface), udp:dev=eth0, packet:dev=eth0 (whole frames, needs CAP_NET_RAW), impair:loss=1%/udp:dev=eth0 [env: BURST_PORT, default: udp]' -r
complete -c burstd -l workers -d 'Number of worker threads; each can use one core [env: BURST_WORKERS, default: 1]' -r
complete -c burstd -l spin -d 'How long an idle worker spins before it sleeps [env: BURST_SPIN, default: 50us]' -r
complete -c burstd -l window -d 'Maximum number of unacknowledged bytes to one peer address, all queue pairs of a worker together; a value under 64KiB is raised to 64KiB [env: BURST_WINDOW, default: 1MiB]' -r
complete -c burstd -l cc -d 'Congestion control: an algorithm, with parameters where they shall differ from its defaults: dcqcn:rpg_ai_rate=100M,rpg_time_reset=55us; default auto, which chooses for each peer [env: BURST_CC]' -r
complete -c burstd -l cc-standard -d 'Congestion control for adapters and other implementations of RoCEv2, instead of that of `cc` [env: BURST_CC_STANDARD]' -r
complete -c burstd -l cc-burst -d 'Congestion control for other Burst daemons, instead of that of `cc`; both agree on one (docs/congestion.md) [env: BURST_CC_BURST]' -r
complete -c burstd -l cc-loopback -d 'Congestion control for the daemon\'s own addresses, instead of that of `cc` [env: BURST_CC_LOOPBACK]' -r
complete -c burstd -l selective-repeat -d 'Repeat only lost packets of RC and XRC queue pairs, with peers whose daemon does so, too; other peers get the standard packets [env: BURST_SELECTIVE_REPEAT, default: on]' -r
complete -c burstd -l rto -d 'Waits of loss recovery: shared where peers sleep or share processors (time-outs from 1 ms, probes from 200 us); dedicated where they do not (100 us, 20 us) [env: BURST_RTO, default: shared]' -r
complete -c burstd -l urma-lanes -d 'Lanes of URMA to each peer (docs/urma.md), the fewer of both hosts\': channels with a window each that leave by UDP source ports of their own, so that switches and adapters spread them over paths and queues [env: BURST_URMA_LANES, default: 1]' -r
complete -c burstd -l urma-caqm -d 'C-AQM for channels of URMA instead of the congestion control of their paths: only where all switches answer it (docs/urma-transport.md) [env: BURST_URMA_CAQM, default: off]' -r
complete -c burstd -l urma-hold -d 'Hold UDP port 4792 of each address while no program of the daemon uses URMA, so that no other user takes it; off for programs that have nodes of their own at the daemon\'s addresses (docs/urma-programs.md) [env: BURST_URMA_HOLD, default: on]' -r
complete -c burstd -l gpu -d 'Let programs register memory of their GPUs, which no GPU has run yet (docs/gpu.md) [env: BURST_GPU, default: off]' -r
complete -c burstd -l packet-ring -d 'Each worker keeps the heads of its last 32,768 packets (4 MiB), so that burst why QPN --pcap FILE gives the packets of a queue pair up to its failure [env: BURST_PACKET_RING, default: off]' -r
complete -c burstd -l idle-exit -d 'End when no program has been connected for this long; 0: never [env: BURST_IDLE_EXIT, default: 0]' -r
complete -c burstd -l ready-fd -d 'Descriptor that gets the line "ready" once the daemon serves; default none [env: BURST_READY_FD]' -r
complete -c burstd -l end-with-fd -d 'Descriptor of a pipe\'s reading end: once no process has the writing end, the daemon ends as by SIGTERM, so that it does not outlive its starter; default none [env: BURST_END_WITH_FD]' -r
complete -c burstd -l user-share -d 'Percentage of each resource that the programs of one user may use of what other users and the reserve leave; root and the daemon\'s user have no such limit [env: BURST_USER_SHARE, default: 50]' -r
complete -c burstd -l user-reserve -d 'Percentage of each resource that only root and the daemon\'s user may use [env: BURST_USER_RESERVE, default: 10]' -r
complete -c burstd -l account-by -d 'Owners of shares: user (each user id), or cgroup (each control group; for containers whose users have the same id) [env: BURST_ACCOUNT_BY, default: user]' -r
complete -c burstd -l account-depth -d 'With account_by = cgroup: a group\'s account is its ancestor\'s at this depth below the root, so that who makes groups gets no more; 0: each group has one [env: BURST_ACCOUNT_DEPTH, default: 2]' -r
complete -c burstd -l subuid-file -d 'Users\' further ids (subuid(5)): a process with an id of a user\'s range uses the user\'s share; /dev/null: each id is a user [env: BURST_SUBUID_FILE, default: /etc/subuid]' -r
complete -c burstd -l lend -d 'Programs that may run the engine themselves and share the daemon\'s addresses (lent mode): off, or same-user: those of the daemon\'s own user, which must trust each other; ports of kind udp only, for 16 programs less one for each worker [env: BURST_LEND, default: off]' -r
complete -c burstd -l guarded -d 'Run under a supervisor process that keeps the sockets and starts a successor when the daemon falls [env: BURST_GUARDED, default: off]' -r
complete -c burstd -l state-dir -d 'Directory for the crash reports of a guarded daemon; default $STATE_DIRECTORY, for root /var/lib/burst, else $XDG_STATE_HOME/burst or ~/.local/state/burst [env: BURST_STATE_DIR]' -r
complete -c burstd -l metrics -d 'Show metrics over HTTP (docs/metrics.md): 127.0.0.1:9317 shows totals to anybody who reaches the port, unix:/run/burst/metrics.sock shows each user what is its own, too; default: not [env: BURST_METRICS]' -r
complete -c burstd -l log-level -d 'Least severe line that is logged; `burst log` changes it at run time [env: BURST_LOG_LEVEL, default: info]' -r
complete -c burstd -l log-format -d 'Format of log lines; text is entries of the journal where stderr is the journal [env: BURST_LOG_FORMAT, default: text]' -r
complete -c burstd -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burstd -s V -l version -d 'Print version'
