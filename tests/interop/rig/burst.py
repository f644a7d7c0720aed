"""Burst in a guest, instead of rxe: for features that this machine's kernel lacks, and for counting instructions."""

import re
import subprocess
import tempfile
from pathlib import Path

from lab import LabError, build_directory

# The environment of programs that shall use it.
BURST = {"LD_LIBRARY_PATH": "/burst/lib", "BURST_SOCKET": "/tmp/burst.sock"}


def install(guest, port="udp:dev=lo"):
    """Copies Burst into the guest, removes rxe (both use UDP port 4791), and starts a daemon; programs need BURST."""
    guest.shell("rdma link delete rxe0 && rmmod rdma_rxe && mkdir -p /burst/lib")
    built = build_directory().resolve()
    with tempfile.TemporaryDirectory() as directory:
        for part in ("burstd", "lib/libibverbs.so.1", "lib/librdmacm.so.1"):
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
