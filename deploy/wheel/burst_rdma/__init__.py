"""Burst: RDMA for programs on hosts without an RDMA adapter.

    burst run -- ib_write_bw …            in a shell: any verbs program
    burst_rdma.daemon(), .hosts(2)        in Python: a daemon, or two hosts with a wire between them
    burst_rdma.env()                      the environment for a child process
    burst_rdma.sim                        the simulator

The fixtures of pytest are in `burst_rdma.pytest_plugin`.
"""

from . import sim
from ._daemon import Daemon, daemon
from ._hosts import Host, hosts
from ._place import BurstError, env, library, prefix, program

__all__ = ["BurstError", "Daemon", "Host", "daemon", "env", "hosts", "library", "prefix", "program", "sim"]
