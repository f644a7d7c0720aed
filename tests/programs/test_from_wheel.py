"""Programs as Debian and PyPI have them, over the wheel `burst-rdma` alone, by a user without rights.

The wheel is made of the build and installed by pip. A user namespace of `nobody` holds a network namespace with one interface; in it burstd of the wheel serves, and each
program is started by `burst run` of the wheel. Nothing of the source tree is in their environment. Each row is a client with its server, or one program.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from lab import build_directory
from lab.rows import PLACE, ROOT

NOBODY = 65534
ADDRESS = "10.77.0.1"
#: Of one row, on a busy machine.
SECONDS = 90
#: Between two tries of a client whose server may not listen yet.
PACE = 0.3
# perftest keeps files in /tmp, which other users may have made before.
NETWORK = f"mount -t tmpfs tmpfs /tmp; ip link set lo up; ip link add eth0 type veth peer name eth1; ip addr add {ADDRESS}/24 dev eth0; ip link set eth0 up; ip link set eth1 up; echo ready; exec cat"

pytestmark = [pytest.mark.download, pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")]


class Place:
    """The environment with the wheel, and the namespaces of its user."""

    def __init__(self, directory):
        self.directory = directory
        directory.chmod(0o755)
        run = directory / "run"
        run.mkdir()
        os.chown(run, NOBODY, NOBODY)
        self.bin = directory / "venv" / "bin"
        self.environment = {"PATH": f"{self.bin}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(run), "XDG_RUNTIME_DIR": str(run), "TMPDIR": str(run),
                            "BURST_SOCKET": str(run / "burstd.sock")}
        self.user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
        self.keeper = subprocess.Popen([*self.user, "unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", NETWORK], cwd=run, env=self.environment,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.keeper.stdout.readline() == b"ready\n"
        self.number = 0
        self.daemon = self.start("burstd", "--socket", run / "burstd.sock", "--port", "udp:dev=eth0", plain=True)
        end = time.monotonic() + SECONDS
        while not (run / "burstd.sock").exists():
            assert self.daemon.poll() is None and time.monotonic() < end, self.text(self.daemon)
            time.sleep(0.1)

    def start(self, *words, env=None, plain=False):
        self.number += 1
        log = (self.directory / f"{self.number}.log").open("wb")
        alone = ["nsenter", "-t", str(self.keeper.pid), "--user", "--net", "--mount", f"--wd={self.directory}/run", "--"]
        run = [] if plain else ["burst", "run", "--no-start", "--"]
        program = subprocess.Popen([*alone, *run, *map(str, words)], cwd="/", env={**self.environment, **(env or {})}, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        program.log = log.name
        return program

    @staticmethod
    def text(program):
        return Path(program.log).read_text(errors="replace")

    def finish(self, program, seconds=SECONDS):
        """The exit code, or None for a program that had to be killed."""
        try:
            return program.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, 9)
            program.wait()
            return None

    def end(self):
        for program in (self.daemon, self.keeper):
            program.terminate()
            program.wait(SECONDS)
        shutil.rmtree(self.directory)


@pytest.fixture(scope="module")
def place():
    directory = Path(tempfile.mkdtemp(prefix="burst-programs-", dir="/var/tmp"))
    done = subprocess.run([ROOT / "scripts" / "wheel", "--build", build_directory(), "--out", directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Debian's python3: every user may execute it.
    for words in (["/usr/bin/python3", "-m", "venv", directory / "venv"],
                  [directory / "venv/bin/pip", "install", "--quiet", "--no-index", "--no-deps", next(directory.glob("*.whl"))]):
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    made = Place(directory)
    yield made
    made.end()


def perftest(program, *more):
    """A row of perftest: name, package, server, client, what the client says."""
    # The sizes of atomics are given, and a datagram is one packet.
    size = [] if "atomic" in program else ["-s", 512]
    words = [program, "-d", "burst0", "-F", "-n", 100, *size, *more]
    return " ".join(map(str, [program, *more])), "perftest", words, [*words, ADDRESS], r"^ (8|512) +[18]00 "


def pingpong(program, *more):
    words = [program, "-d", "burst0", "-g", "GID", "-n", 200, *more]
    return " ".join(map(str, [program, *more])), "ibverbs-utils", words, [*words, ADDRESS], r"bytes in .* seconds|^success"


def alone(words, package, says):
    return " ".join(words), package, None, words, says


def qperf(test):
    """Connected by librdmacm: what it does without has no GRH."""
    return f"qperf {test}", "qperf", ["qperf"], ["qperf", "-cm", 1, "-t", 1, ADDRESS, test], r"(bw|latency|rate) +="


def ucx(transport, test, size=8192):
    """rc_v connects by datagrams."""
    words = ["env", f"UCX_TLS={transport}", "UCX_NET_DEVICES=burst0:1", "ucx_perftest", "-t", test, "-n", 500, "-w", 10, "-s", size]
    return f"ucx_perftest {transport} {test}", "ucx-utils", words, [*words[:4], ADDRESS, *words[4:]], r"^Final: +500 "


def fabric(*words):
    words = ["fi_pingpong", *words, "-c", "-I", 20]
    return " ".join(map(str, words[:5])), "libfabric-bin", words, [*words, ADDRESS], r"^64 +20 +=20"


def fio(verb):
    common = ["--ioengine=rdma", "--port=18600", "--bs=64k", "--size=4m"]
    server = ["fio", "--name=server", *common, "--rw=read", "--iodepth=16"]
    client = ["fio", "--name=client", *common, "--hostname=" + ADDRESS, f"--verb={verb}", "--rw=write", "--iodepth=8"]
    return f"fio --ioengine=rdma --verb={verb}", "fio", server, client, r"bw="


RPING = ["-a", ADDRESS, "-C", 20, "-v"]
RSOCKETS = "rsocket fails with ENOSYS: Burst has no rsockets"
ROWS = [
    *(perftest(f"ib_{verb}_{kind}") for verb in ("write", "read", "send", "atomic") for kind in ("bw", "lat")),
    *(perftest(f"ib_{verb}_{kind}", "-c", "UC") for verb in ("write", "send") for kind in ("bw", "lat")),
    *(perftest(f"ib_send_{kind}", "-c", "UD") for kind in ("bw", "lat")),
    *(perftest(f"ib_{verb}_{kind}", "-c", "XRC") for verb in ("write", "read", "send", "atomic") for kind in ("bw", "lat")),
    *(perftest(f"ib_{verb}_{kind}", "-R") for verb in ("write", "read", "send") for kind in ("bw", "lat")),
    perftest("ib_write_bw", "-q", 8), perftest("ib_send_bw", "-e"), perftest("ib_write_bw", "-b"), perftest("ib_send_bw", "-r", 64, "--use-srq"),
    *(pingpong(f"ibv_{kind}_pingpong") for kind in ("rc", "uc", "ud", "srq")), pingpong("ibv_rc_pingpong", "-e"), pingpong("ibv_rc_pingpong", "-c"),
    pingpong("ibv_srq_pingpong", "-e"), pingpong("ibv_rc_pingpong", "-t"), pingpong("ibv_xsrq_pingpong"),
    alone(["ibv_devices"], "ibverbs-utils", r"burst0"), alone(["ibv_devinfo", "-v", "-d", "burst0"], "ibverbs-utils", r"PORT_ACTIVE"),
    alone(["ibstat", "burst0"], "infiniband-diags", r"State: Active"), alone(["ibstatus"], "infiniband-diags", r"burst0"),
    ("rping", "rdmacm-utils", ["rping", "-s", *RPING], ["rping", "-c", *RPING], r"ping data"),
    ("ucmatose", "rdmacm-utils", ["ucmatose"], ["ucmatose", "-s", ADDRESS], r"return status 0"),
    ("udaddy", "rdmacm-utils", ["udaddy"], ["udaddy", "-s", ADDRESS], r"return status 0"),
    ("mckey", "rdmacm-utils", ["mckey", "-m", "239.1.2.3", "-b", ADDRESS], ["mckey", "-m", "239.1.2.3", "-b", ADDRESS, "-s"], r"return status 0|data transfers complete"),
    ("rdma_client", "rdmacm-utils", ["rdma_server"], ["rdma_client", "-s", ADDRESS], r"rdma_client: end 0"),
    ("rdma_xclient", "rdmacm-utils", ["rdma_xserver"], ["rdma_xclient", "-s", ADDRESS], r"rdma_xclient: end 0|end 0"),
    ("cmtime", "rdmacm-utils", ["cmtime", "-s", "-c", 20], ["cmtime", "-s", ADDRESS, "-c", 20], r"connect +:|rdma_connect|full connect"),
    *(qperf(test) for test in ("rc_bw", "rc_lat", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_compare_swap_mr",
                               "rc_fetch_add_mr", "ver_rc_fetch_add", "ver_rc_compare_swap")),
    alone(["fi_info", "-p", "verbs"], "libfabric-bin", r"domain: burst0"),
    fabric("-p", "verbs", "-e", "msg"), fabric("-p", "verbs;ofi_rxm", "-e", "rdm"), fabric("-p", "verbs", "-e", "dgram", "-d", "burst0-dgram"),
    alone(["ucx_info", "-d"], "ucx-utils", r"Transport: rc_verbs"),
    *(ucx("rc_v", test) for test in ("tag_lat", "tag_bw", "stream_lat", "stream_bw", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_am_lat", "ucp_am_bw")),
    *(ucx("rc_v", test, 8) for test in ("ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap")), ucx("ud_v", "tag_lat"), ucx("ud_v", "tag_bw"),
    *(fio(verb) for verb in ("write", "read", "send")),
    *((name, "rdmacm-utils", [name], [name, "-s", ADDRESS], r"MB|done") for name in ("rstream", "riostream", "udpong")),
]
KNOWN = {"rstream": RSOCKETS, "riostream": RSOCKETS, "udpong": RSOCKETS}


def row(name, package, server, client, says):
    marks = [pytest.mark.program(name, package, mode="wheel, user without rights")]
    if name in KNOWN:
        marks.append(pytest.mark.xfail(reason=KNOWN[name], strict=True))
    if not shutil.which(next(word for word in client if "=" not in str(word) and word != "env")):
        marks.append(pytest.mark.skip(reason=f"{client[0]} is missing: scripts/install-deps --programs installs {package}"))
    return pytest.param(server, client, says, id=name.replace(" ", "_"), marks=marks)


@pytest.fixture(scope="module")
def gid_index(place):
    """Of the IPv4 address."""
    lister = place.start("burst", "ls", "--json", plain=True)
    place.finish(lister)
    found = re.search(rf'"address": *"{ADDRESS}"[^}}]*"index": *(\d+)|"index": *(\d+)[^}}]*"address": *"{ADDRESS}"', place.text(lister))
    assert found, place.text(lister)
    return found.group(1) or found.group(2)


@pytest.mark.parametrize(("server", "client", "says"), [row(*one) for one in ROWS])
def test_a_program_of_debian(place, command, gid_index, server, client, says):
    server, client = ([gid_index if word == "GID" else word for word in words or []] for words in (server, client))
    command(*client)
    serving = place.start(*server) if server else None
    try:
        end = time.monotonic() + SECONDS
        while True:
            asking = place.start(*client)
            code, text = place.finish(asking), place.text(asking)
            right = code == 0 and re.search(says, text, re.M)
            # fio ends with 0 if no program listens. A server that has ended has heard this client.
            if right or not serving or serving.poll() is not None or time.monotonic() > end:
                break
            time.sleep(PACE)
        assert right, text + (place.text(serving) if serving else "")
    finally:
        if serving and serving.poll() is None:
            os.killpg(serving.pid, 15)
            place.finish(serving, 10)


@pytest.mark.program("NIXL (PyPI `nixl-cu12`)", lambda: "1.5.1", mode="wheel, user without rights")
@pytest.mark.skipif(not (PLACE / "wheels").exists(), reason="wheels of PyPI are missing: scripts/install-deps --programs installs them")
def test_nixl(place, command):
    """Its own libibverbs gives way."""
    program = place.start(*command(PLACE / "wheels" / "bin" / "python3", ROOT / "tests/programs/nixl_write.py"),
                          env={"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "burst0:1"})
    code = place.finish(program)
    assert code == 0 and "checked" in place.text(program), place.text(program)


def test_the_library_is_the_wheels(place):
    """No row has used another library."""
    program = place.start("ldd", shutil.which("ibv_devices"))
    assert place.finish(program) == 0 and f"{place.directory}/venv" in place.text(program), place.text(program)
