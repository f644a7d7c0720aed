"""Two hosts in one machine, for the demo and the system tests.

`Fabric` makes two network namespaces joined by a veth pair, runs a burstd in each, and runs programs in them. Nothing
can be left behind: the namespaces have no names and no mounts (each lives as long as a `cat` that reads from our
pipe), and every process is killed by the kernel when its parent dies (`setpriv --pdeathsig`).
"""

from .fabric import Daemon, Fabric, Host, Program, build_directory, namespaces_refused
from .perftest import Result, run_pair
from .waiting import LabError, Deadline, await_true, wait_until

__all__ = [
    "Daemon", "Fabric", "Host", "LabError", "Deadline", "Program", "Result", "await_true", "build_directory", "namespaces_refused",
    "run_pair", "wait_until",
]
