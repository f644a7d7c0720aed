"""Burst in a guest, instead of rxe: for features that this machine's kernel lacks, and for counting instructions."""

import re
import subprocess
import tempfile
from pathlib import Path

from lab import LabError, build_directory

# The environment of programs that shall use it.
BURST = {"LD_LIBRARY_PATH": "/burst/lib", "BURST_SOCKET": "/tmp/burst.sock"}
PARTS = ("burstd", "lib/libibverbs.so.1", "lib/librdmacm.so.1", "lib/libburst-inprocess.so.1")


class ProgramEnd:
    """A guest that has Burst, as `run_pair` takes it: its programs have engines of their own on an address of eth0, one at a time."""

    def __init__(self, guest, address):
        self.guest, self.address = guest, address
        self.env = {**BURST, "BURST_MODE": "inprocess", "BURST_PORT": f"udp:dev=eth0,addr={address}"}
        guest.shell(f"ip addr replace {address}/24 dev eth0")

    def __getattr__(self, name):
        return getattr(self.guest, name)

    def start(self, *words, env=None, **options):
        """Starts a program in the guest."""
        return self.guest.start(*words, env={**(env or {}), **self.env}, **options)


def install(guest, port="udp:dev=lo"):
    """Copies Burst into the guest, removes rxe (both use UDP port 4791), and starts a daemon; programs need BURST."""
    guest.shell("rdma link delete rxe0 && rmmod rdma_rxe && mkdir -p /burst/lib")
    built = build_directory().resolve()
    with tempfile.TemporaryDirectory() as directory:
        for part in PARTS:
            bare = Path(directory) / "bare"
            subprocess.run(["strip", "-o", bare, built / part], check=True)
            guest.put(bare, f"/burst/{part}")
    # Libraries of a burstd with the port kind dpdk that the guest lacks.
    linked = subprocess.run(["ldd", built / "burstd"], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"=> (/\S+)", linked):
        if guest.run("test", "-e", library)[0]:
            guest.put(Path(library), f"/burst/lib/{Path(library).name}")
    return serve(guest, port)


def serve(guest, port):
    """Starts a daemon in a guest that has Burst."""
    socket = BURST["BURST_SOCKET"]
    guest.shell(f"rm -f {socket}")
    daemon = guest.start("/burst/burstd", "--socket", socket, "--port", port, env=BURST)
    guest.shell(f"n=0; while [ ! -S {socket} ] && [ $n -lt 500 ]; do usleep 20000; n=$((n+1)); done")
    if not daemon.running():
        raise LabError(f"burstd does not run in the guest:\n{daemon.text()}")
    return daemon
