"""`burst proxy` over the kernel's rxe: the guest's proxy uses the distribution's librdmacm and libibverbs, the host's those of Burst.

The host's proxy takes connections to the guest. A server in the guest (nc) knows nothing of it.
"""

import hashlib
import random
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from lab import build_directory, wait_until
from rig.guest import inside

UP, DOWN = 7000, 7001
COUNT = 2_000_000


def configuration(name, address, peer, rule):
    other = "b" if name == "a" else "a"
    return (f'name = "{name}"\nlisten = "{address}:7400"\nkeys = "/tmp/keys"\nadmin = "/tmp/proxy-{name}.sock"\nwindow = "64KiB"\n'
            f'memory = "16MiB"\n[[peer]]\nname = "{other}"\naddress = "{peer}:7400"\n{rule}\n')


@pytest.fixture
def proxies(rig):
    """A proxy in the guest that serves, and one on the host that takes."""
    host, guest = rig.host, rig.guest
    built = build_directory()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        subprocess.run([built / "burst", "proxy", "keys", place, "a", "b"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["strip", "-o", place / "bare", built / "burst-proxy"], check=True)
        guest.shell("mkdir -p /tmp/keys")
        guest.put(place / "bare", "/bin/burst-proxy")
        for name in ("ca.pem", "b.pem", "b.key"):
            guest.put(place / name, f"/tmp/keys/{name}")
        (place / "b.toml").write_text(configuration("b", guest.address, host.address, f'[[serve]]\nto = ["{guest.address}"]'))
        guest.put(place / "b.toml", "/tmp/b.toml")
        rule = f'[[take]]\nto = ["{guest.address}"]\nports = "{UP},{DOWN}"'
        text = configuration("a", host.address, guest.address, rule)
        (place / "a.toml").write_text(text.replace("/tmp/keys", directory).replace("/tmp/proxy-a.sock", f"{directory}/a.sock"))
        served = guest.start("burst-proxy", "run", "/tmp/b.toml")
        taken = host.start(built / "burst-proxy", "run", place / "a.toml")
        show = lambda: host.run(built / "burst-proxy", "ls", "--admin", f"{directory}/a.sock")[1]  # noqa: E731
        try:
            wait_until(lambda: "carries" in show() and " rdma " in show(), 60, lambda: f"{show()}\n{taken.text()}\n{served.text()}")
            yield lambda: host.run(built / "burst-proxy", "stats", "--admin", f"{directory}/a.sock")[1]
        finally:
            taken.stop()
            served.stop()


def client(rig, port):
    """A connection from the host to the guest."""
    made = inside(rig.guest.namespace, lambda: socket.socket())
    made.settimeout(60)
    made.connect((rig.guest.address, port))
    return made


def test_streams_over_rxe_are_whole(rig, proxies):
    data = random.Random(1).randbytes(COUNT)
    md5 = hashlib.md5(data).hexdigest()
    with pytest.raises(ConnectionRefusedError):
        client(rig, UP)
    server = rig.guest.start("sh", "-c", f"nc -l -p {UP} | md5sum")
    rig.guest.shell(f"n=0; while ! grep -q ':{UP:04X} .* 0A ' /proc/net/tcp* && [ $n -lt 200 ]; do usleep 50000; n=$((n+1)); done")
    with client(rig, UP) as ours:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(1) == b""
    assert server.wait(60) == 0 and md5 in server.text(), server.text()
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        rig.guest.put(Path(file.name), "/tmp/data")
    server = rig.guest.start("sh", "-c", f"nc -l -p {DOWN} < /tmp/data")
    rig.guest.shell(f"n=0; while ! grep -q ':{DOWN:04X} .* 0A ' /proc/net/tcp* && [ $n -lt 200 ]; do usleep 50000; n=$((n+1)); done")
    got = b""
    with client(rig, DOWN) as ours:
        while part := ours.recv(1 << 16):
            got += part
    assert got == data, f"{len(got)} bytes"
    # A program may see the end before the proxy of its host hears of the other direction's.
    counted = lambda: dict(line.split() for line in proxies().splitlines())  # noqa: E731
    wait_until(lambda: int(counted()["streams_ended"]) >= 2, said=proxies)
    counters = counted()
    assert int(counters["links_on_rdma"]) >= 1 and "links_on_control_channel" not in counters, counters
