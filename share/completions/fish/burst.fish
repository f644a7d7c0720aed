# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_burst_global_optspecs
    string join \n h/help V/version
end

function __fish_burst_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_burst_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_burst_using_subcommand
    set -l cmd (__fish_burst_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c burst -n "__fish_burst_needs_command" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_needs_command" -s V -l version -d 'Print version'
complete -c burst -n "__fish_burst_needs_command" -f -a "run" -d 'Run a program whose verbs calls go to Burst'
complete -c burst -n "__fish_burst_needs_command" -f -a "ls" -d 'List devices, their ports and addresses'
complete -c burst -n "__fish_burst_needs_command" -f -a "doctor" -d 'Check, step by step, whether verbs programs can work here, and say what to do if not'
complete -c burst -n "__fish_burst_needs_command" -f -a "why" -d 'Explain the last failure, those of a queue pair or process, or a reason'
complete -c burst -n "__fish_burst_needs_command" -f -a "stats" -d 'Show the daemon\'s counters'
complete -c burst -n "__fish_burst_needs_command" -f -a "metrics" -d 'Show metrics of the daemon and of programs with engines of their own, for Prometheus'
complete -c burst -n "__fish_burst_needs_command" -f -a "top" -d 'Watch ports, workers and queue pairs on the terminal'
complete -c burst -n "__fish_burst_needs_command" -f -a "capture" -d 'Show the packets of a daemon\'s ports, or write them for Wireshark'
complete -c burst -n "__fish_burst_needs_command" -f -a "cc" -d 'Show the congestion control of each peer, or change it'
complete -c burst -n "__fish_burst_needs_command" -f -a "cm" -d 'Show what connection setup costs, step by step, and the connections'
complete -c burst -n "__fish_burst_needs_command" -f -a "impair" -d 'Lose, delay, mark or reorder packets of a port for a time, to see how programs fare'
complete -c burst -n "__fish_burst_needs_command" -f -a "lab" -d 'Learn RDMA: ten exercises of ten minutes, with real packets and no rights (docs/lab.md)'
complete -c burst -n "__fish_burst_needs_command" -f -a "log" -d 'Show the levels of the daemon\'s log, or change them'
complete -c burst -n "__fish_burst_needs_command" -f -a "host-files" -d 'Show the devices in /sys/class/infiniband and /dev/infiniband to every program of this host (root)'
complete -c burst -n "__fish_burst_needs_command" -f -a "detach-daemon"
complete -c burst -n "__fish_burst_needs_command" -f -a "in-process-snapshot" -d 'Open a host in this process, and print its devices as JSON'
complete -c burst -n "__fish_burst_needs_command" -f -a "proxy" -d 'Carry TCP connections of unmodified programs over RDMA (docs/proxy.md)'
complete -c burst -n "__fish_burst_needs_command" -f -a "sim" -d 'Simulate hosts that run the real engine on a modelled network (docs/simulator.md)'
complete -c burst -n "__fish_burst_needs_command" -f -a "switch" -d 'Switch frames between interfaces, with a rate, a buffer, marks and faults (docs/switch.md)'
complete -c burst -n "__fish_burst_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand run" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand run" -l port -d 'Port of a daemon that has to be started, for example udp:dev=eth0 [default: udp]' -r
complete -c burst -n "__fish_burst_using_subcommand run" -l in-process -d 'Run the engine inside the program, without a daemon; the program needs an address that no daemon serves'
complete -c burst -n "__fish_burst_using_subcommand run" -l lent -d 'Run the engine inside the program, on the addresses of the running daemon, which must allow it (burstd --lend same-user)'
complete -c burst -n "__fish_burst_using_subcommand run" -l no-start -d 'Fail if no daemon runs: start none'
complete -c burst -n "__fish_burst_using_subcommand run" -l no-host-files -d 'Run the program in the host\'s namespaces, without /dev/infiniband and /sys/class/infiniband'
complete -c burst -n "__fish_burst_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand ls" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand ls" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand ls" -l users -d 'List what the programs of each user use of the daemon\'s limited resources, and how much they may use'
complete -c burst -n "__fish_burst_using_subcommand ls" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand doctor" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand doctor" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand why" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand why" -l reports -d 'With `daemon`: the directory of crash reports to read if no daemon answers (state_dir) [default: this user\'s]' -r -F
complete -c burst -n "__fish_burst_using_subcommand why" -l pcap -d 'With qp:NUMBER or jetty:ID: write its last packets, up to its failure, as pcapng; the host must keep them (packet_ring)' -r
complete -c burst -n "__fish_burst_using_subcommand why" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand why" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand stats" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand stats" -l watch -d 'Show what was counted in each interval, per second, until stopped [default: 1s]' -r
complete -c burst -n "__fish_burst_using_subcommand stats" -l count -d 'Stop after so many intervals' -r
complete -c burst -n "__fish_burst_using_subcommand stats" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand stats" -l all -d 'Also counters that are 0'
complete -c burst -n "__fish_burst_using_subcommand stats" -l prometheus -d 'Print metrics for Prometheus (docs/metrics.md)'
complete -c burst -n "__fish_burst_using_subcommand stats" -l names -d 'List the names of all counters; needs no daemon'
complete -c burst -n "__fish_burst_using_subcommand stats" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand metrics" -l listen -d 'Show them over HTTP until stopped: unix:PATH (each user sees its own, too), or ADDRESS:PORT (totals only)' -r
complete -c burst -n "__fish_burst_using_subcommand metrics" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand metrics" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand top" -l interval -d 'Time between two looks' -r
complete -c burst -n "__fish_burst_using_subcommand top" -l filter -d 'Show queue pairs with this text only' -r
complete -c burst -n "__fish_burst_using_subcommand top" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand capture" -s w -l write -d 'Write pcapng to this file; `-`: to stdout' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l snap -d 'Bytes of each packet behind the UDP header [default: all, without -w 128]' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l count -d 'End after N packets' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l for -d 'End after this time' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l read -d 'Show the packets of this pcapng file instead; twice: of two hosts' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l svg -d 'Draw a ladder of the first packets (30, or --count) between two hosts as SVG; `-`: to stdout' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l qp -d 'Only packets of this queue pair of the host (0x11f or 287); several: with commas, or given again' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l jetty -d 'Only packets of this Jetty of the host: its requests and their responses, and what is sent to it' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l peer -d 'Only packets from or to this address' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l opcode -d 'Only packets whose opcode has this in its name: send, `rdma write`, `read response`, acknowledge, cnp' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l stage -d 'Only packets that were sent, received, dropped, or refused with a NAK' -r
complete -c burst -n "__fish_burst_using_subcommand capture" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand capture" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand cc" -l for -d 'Change it for peers of this kind only: standard, burst (other Burst daemons), loopback (own addresses)' -r
complete -c burst -n "__fish_burst_using_subcommand cc" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand cc" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand cc" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand cm" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand cm" -l state -d 'Only connections in this state' -r -f -a "listening\t''
req-sent\t''
queued\t''
req-received\t''
rep-sent\t''
rep-received\t''
established\t''
dreq-sent\t''
time-wait\t''
sidr-sent\t''
sidr-received\t''
sidr-answered\t''"
complete -c burst -n "__fish_burst_using_subcommand cm" -s w -l watch -d 'Again every so many seconds [1], each time what happened since, until interrupted' -r
complete -c burst -n "__fish_burst_using_subcommand cm" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand cm" -s c -l connections -d 'List connections and listeners, by state'
complete -c burst -n "__fish_burst_using_subcommand cm" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand impair" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand impair" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "check" -d 'Check an answer of the exercise in hand'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "run" -d 'Let the traffic of the exercise run again'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "ladder" -d 'Draw the packets of the last run'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "on" -d 'Run a command as on a host of the exercise: burst lab on b burst why'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "again" -d 'Print the question of the exercise in hand again'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "solve" -d 'Show how exercises are solved: a wrong answer, then the right one'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "stop" -d 'End the hosts of the exercise in hand'
complete -c burst -n "__fish_burst_using_subcommand lab; and not __fish_seen_subcommand_from check run ladder on again solve stop help" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from ladder" -l all -d 'All packets, not only the first ones'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from ladder" -l first -d 'Of the run of the set-up'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from ladder" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from on" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from again" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from solve" -l all -d 'All ten'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from solve" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from stop" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "check" -d 'Check an answer of the exercise in hand'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "run" -d 'Let the traffic of the exercise run again'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "ladder" -d 'Draw the packets of the last run'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "on" -d 'Run a command as on a host of the exercise: burst lab on b burst why'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "again" -d 'Print the question of the exercise in hand again'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "solve" -d 'Show how exercises are solved: a wrong answer, then the right one'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "stop" -d 'End the hosts of the exercise in hand'
complete -c burst -n "__fish_burst_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand log" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand log" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand log" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand host-files" -l socket -d 'Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]' -r -F
complete -c burst -n "__fish_burst_using_subcommand host-files" -l live -d 'With `on`: go on, and write the counters anew every `lifespan` milliseconds, a file beside them, until stopped'
complete -c burst -n "__fish_burst_using_subcommand host-files" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand detach-daemon" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand in-process-snapshot" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -s V -l version -d 'Print version'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "run" -d 'Run a proxy until SIGTERM'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "keys" -d 'Make a certificate authority and a certificate for each name, where they are missing'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "ls" -d 'List peers, links and streams'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "stats" -d 'Show counters'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "metrics" -d 'Show counters as Prometheus text'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "why" -d 'Explain the last connection that ended in error, and show which ones no peer carried: the last 256 of each per worker'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "log" -d 'Show the level of the log, or change it while the proxy runs: `debug` has lines of each connection'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "drain" -d 'Take no new connections; open streams go on'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "reload" -d 'Read rules, peers and certificates again; open streams go on'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "break-queue-pairs" -d 'Break all queue pairs, to test resumption'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "janitor" -d 'Remove routes when standard input ends'
complete -c burst -n "__fish_burst_using_subcommand proxy; and not __fish_seen_subcommand_from run keys ls stats metrics why log drain reload break-queue-pairs janitor help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from run" -l metrics -d 'Show counters over HTTP, too: unix:PATH (root and the proxy\'s user see names of peers), or ADDRESS:PORT (totals only)' -r
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from run" -l log-level -d 'Level of the log at the start [default: info]' -r -f -a "info\t''
debug\t''"
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from run" -l replace -d 'If a proxy runs at the admin socket of CONFIG: first let it end, as `drain --end SECONDS` does' -r
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from keys" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from ls" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from ls" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from stats" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from stats" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from stats" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from metrics" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from metrics" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from why" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from why" -l json -d 'Print JSON'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from why" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from log" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from log" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from drain" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from drain" -l end -d 'End the proxy with its last open stream, and reset those that are left after so long; wait for that' -r
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from drain" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from reload" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from reload" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from break-queue-pairs" -l admin -d 'Admin socket of the proxy [default: the only one in /run/burst]' -r -F
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from break-queue-pairs" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from janitor" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "run" -d 'Run a proxy until SIGTERM'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "keys" -d 'Make a certificate authority and a certificate for each name, where they are missing'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "ls" -d 'List peers, links and streams'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "stats" -d 'Show counters'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "metrics" -d 'Show counters as Prometheus text'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "why" -d 'Explain the last connection that ended in error, and show which ones no peer carried: the last 256 of each per worker'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "log" -d 'Show the level of the log, or change it while the proxy runs: `debug` has lines of each connection'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "drain" -d 'Take no new connections; open streams go on'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "reload" -d 'Read rules, peers and certificates again; open streams go on'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "break-queue-pairs" -d 'Break all queue pairs, to test resumption'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "janitor" -d 'Remove routes when standard input ends'
complete -c burst -n "__fish_burst_using_subcommand proxy; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -l seed -d 'Seed, instead of the scenario\'s' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -l json -d 'Write the results as JSON to this file; `-`: to the standard output, without the table' -r -F
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -l svg -d 'Plot the results into this file' -r -F
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -l capture -d 'Write the packets of one host into this file, for Wireshark and tshark' -r -F
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -l capture-host -d 'Host whose packets are captured' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -s V -l version -d 'Print version'
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -a "sweep" -d 'Run a scenario with all combinations of some values, on all cores'
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -a "hunt" -d 'Look for faults: random scenarios under the oracle; a failure is made smaller and shown with its command'
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -a "replay" -d 'Run the random scenario of a seed again, as `hunt` did'
complete -c burst -n "__fish_burst_using_subcommand sim; and not __fish_seen_subcommand_from sweep hunt replay help" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from sweep" -l set -d 'Values of a key; values that have commas are separated by `;`' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from sweep" -l json -d 'Write all results as JSON' -r -F
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from sweep" -l jobs -d 'Threads [default: all cores]' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from sweep" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from hunt" -l from -d 'First seed [default: from the clock]' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from hunt" -l seeds -d 'Number of seeds' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from hunt" -l seconds -d 'How long [default: 60]' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from hunt" -l jobs -d 'Threads [default: all cores]' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from hunt" -l liveness -d 'Scenarios of liveness instead: goodput after a loss, drops at a bottleneck'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from hunt" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from replay" -l capture -d 'Write the packets of one host into this file, for Wireshark and tshark' -r -F
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from replay" -l capture-host -d 'Host whose packets are captured' -r
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from replay" -l show -d 'Print the scenario and do not run it'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from replay" -l liveness -d 'The seed\'s scenario of liveness instead: goodput after a loss, drops at a bottleneck'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from replay" -s h -l help -d 'Print help'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "sweep" -d 'Run a scenario with all combinations of some values, on all cores'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "hunt" -d 'Look for faults: random scenarios under the oracle; a failure is made smaller and shown with its command'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "replay" -d 'Run the random scenario of a seed again, as `hunt` did'
complete -c burst -n "__fish_burst_using_subcommand sim; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand switch" -l rate -d 'Rate of each port, such as 300Mbit [default: unlimited]' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l buffer -d 'Buffer that the ports share; what finds no room is dropped' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l ecn -d 'Mark packets (CE) that find a longer queue; with two sizes with a share that grows between them' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l delay -d 'Delay from port to port, each way' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l loss -d 'Share of packets that are lost, such as 1% or 0.001' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l dup -d 'Share of packets that come twice' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l reorder -d 'Share of packets that are late, by up to --late' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l late -d 'The longest that a reordered packet is late' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l seed -d 'Seed of what is random' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l for -d 'End after this time [default: at a signal]' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l end-with-fd -d 'Descriptor of a pipe\'s reading end: end once no process has the writing end, as at a signal' -r
complete -c burst -n "__fish_burst_using_subcommand switch" -l json -d 'Write the results to this file; `-`: to the standard output, without the table' -r -F
complete -c burst -n "__fish_burst_using_subcommand switch" -l samples -d 'Write the queues\' lengths every 10 ms to this file: seconds, then bytes of each port' -r -F
complete -c burst -n "__fish_burst_using_subcommand switch" -l capture -d 'Write what comes in and what goes out to this file, for Wireshark' -r -F
complete -c burst -n "__fish_burst_using_subcommand switch" -l quiet -d 'Print no table at the end'
complete -c burst -n "__fish_burst_using_subcommand switch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c burst -n "__fish_burst_using_subcommand switch" -s V -l version -d 'Print version'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "run" -d 'Run a program whose verbs calls go to Burst'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "ls" -d 'List devices, their ports and addresses'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "doctor" -d 'Check, step by step, whether verbs programs can work here, and say what to do if not'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "why" -d 'Explain the last failure, those of a queue pair or process, or a reason'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "stats" -d 'Show the daemon\'s counters'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "metrics" -d 'Show metrics of the daemon and of programs with engines of their own, for Prometheus'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "top" -d 'Watch ports, workers and queue pairs on the terminal'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "capture" -d 'Show the packets of a daemon\'s ports, or write them for Wireshark'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "cc" -d 'Show the congestion control of each peer, or change it'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "cm" -d 'Show what connection setup costs, step by step, and the connections'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "impair" -d 'Lose, delay, mark or reorder packets of a port for a time, to see how programs fare'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "lab" -d 'Learn RDMA: ten exercises of ten minutes, with real packets and no rights (docs/lab.md)'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "log" -d 'Show the levels of the daemon\'s log, or change them'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "host-files" -d 'Show the devices in /sys/class/infiniband and /dev/infiniband to every program of this host (root)'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "detach-daemon"
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "in-process-snapshot" -d 'Open a host in this process, and print its devices as JSON'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "proxy" -d 'Carry TCP connections of unmodified programs over RDMA (docs/proxy.md)'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "sim" -d 'Simulate hosts that run the real engine on a modelled network (docs/simulator.md)'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "switch" -d 'Switch frames between interfaces, with a rate, a buffer, marks and faults (docs/switch.md)'
complete -c burst -n "__fish_burst_using_subcommand help; and not __fish_seen_subcommand_from run ls doctor why stats metrics top capture cc cm impair lab log host-files detach-daemon in-process-snapshot proxy sim switch help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "check" -d 'Check an answer of the exercise in hand'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "run" -d 'Let the traffic of the exercise run again'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "ladder" -d 'Draw the packets of the last run'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "on" -d 'Run a command as on a host of the exercise: burst lab on b burst why'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "again" -d 'Print the question of the exercise in hand again'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "solve" -d 'Show how exercises are solved: a wrong answer, then the right one'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "stop" -d 'End the hosts of the exercise in hand'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "run" -d 'Run a proxy until SIGTERM'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "keys" -d 'Make a certificate authority and a certificate for each name, where they are missing'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "ls" -d 'List peers, links and streams'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "stats" -d 'Show counters'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "metrics" -d 'Show counters as Prometheus text'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "why" -d 'Explain the last connection that ended in error, and show which ones no peer carried: the last 256 of each per worker'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "log" -d 'Show the level of the log, or change it while the proxy runs: `debug` has lines of each connection'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "drain" -d 'Take no new connections; open streams go on'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "reload" -d 'Read rules, peers and certificates again; open streams go on'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "break-queue-pairs" -d 'Break all queue pairs, to test resumption'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from proxy" -f -a "janitor" -d 'Remove routes when standard input ends'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "sweep" -d 'Run a scenario with all combinations of some values, on all cores'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "hunt" -d 'Look for faults: random scenarios under the oracle; a failure is made smaller and shown with its command'
complete -c burst -n "__fish_burst_using_subcommand help; and __fish_seen_subcommand_from sim" -f -a "replay" -d 'Run the random scenario of a seed again, as `hunt` did'
