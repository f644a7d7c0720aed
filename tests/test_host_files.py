"""Files that programs read without the library: /dev/infiniband and /sys/class/infiniband, for one program or for all."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import BUILD
from lab import run_pair

NOBODY = 65534

# The properties of the node that UCX and Mooncake check, and the files below /sys that several programs read.
PROBE = """
import json, os, stat
root = "/sys/class/infiniband/burst0"
read = lambda path: open(f"{root}/{path}").read()
node = "/dev/infiniband/uverbs_burst0"
print(json.dumps({
    "character": stat.S_ISCHR(os.stat(node).st_mode),
    "access": os.access(node, os.R_OK | os.W_OK),
    "number": [os.major(os.stat(node).st_rdev), os.minor(os.stat(node).st_rdev)],
    "listing": os.listdir("/sys/class/infiniband"),
    "texts": {path: read(path) for path in (
        "node_type", "ports/1/state", "ports/1/link_layer", "ports/1/rate", "ports/1/pkeys/0", "ports/1/gids/0",
        "ports/1/gid_attrs/types/0", "ports/1/gid_attrs/ndevs/0", "ports/1/counters/port_xmit_data", "device/numa_node",
        "device/vendor", "node_guid")},
    "net": os.listdir(f"{root}/device/net"),
    "path": os.path.realpath(f"{root}/device"),
    "verbs_class": os.path.exists("/sys/class/infiniband_verbs"),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "user": [os.getuid(), os.getgid()],
    "mount_namespace": os.readlink("/proc/self/ns/mnt"),
    "tmp": [os.stat("/tmp").st_dev, os.stat("/tmp").st_ino],
    "dev": sorted(os.listdir("/dev")),
}))
"""


def look(host, *words, user=None):
    """The files as a program sees them: started by `burst run WORDS`, or directly if there are no words."""
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"] if user else []
    run = [burst_of(host), "run", "--socket", host.socket, *words, "--"] if words else []
    code, text = host.run(*drop, *run, "/usr/bin/python3", "-c", PROBE)
    return code, json.loads(text.splitlines()[-1]) if code == 0 else text


def burst_of(host):
    """A copy that every user may execute (a checkout in /root is not accessible)."""
    place = host.directory / "install"
    if not place.exists():
        shutil.copytree(BUILD / "lib", place / "lib", ignore=lambda _, names: [n for n in names if ".so" not in n])
        shutil.copy(BUILD / "burst", place / "burst")
    return place / "burst"


@pytest.fixture(scope="module")
def host(fabric):
    yield fabric.a
    assert not Path("/dev/infiniband/uverbs_burst0").exists(), "something is left on the host"


@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
def test_a_program_under_run_sees_the_device(host, user):
    code, seen = look(host, "--no-start", user=user)
    assert code == 0, seen
    assert seen["character"] and seen["access"] and seen["number"] == [1, 7]
    assert seen["listing"] == ["burst0"] and not seen["verbs_class"]
    (device,) = host.devices()
    gid = "0000:0000:0000:0000:0000:ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, host.address.split(".")))
    expected = {
        "node_type": "1: CA", "ports/1/state": "4: ACTIVE", "ports/1/link_layer": "Ethernet", "ports/1/pkeys/0": "0xffff",
        "ports/1/gids/0": gid, "ports/1/gid_attrs/types/0": "RoCE v2", "ports/1/gid_attrs/ndevs/0": "eth0",
        "device/numa_node": "-1", "node_guid": device["guid"],
    }
    assert {path: seen["texts"][path] for path in expected} == {path: text + "\n" for path, text in expected.items()}
    assert "Gb/sec" in seen["texts"]["ports/1/rate"] and seen["texts"]["ports/1/counters/port_xmit_data"].strip().isdigit()
    assert seen["net"] == ["eth0"] and seen["path"] == "/sys/class/infiniband/burst0/device"
    assert seen["user"] == [user or 0] * 2


@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
def test_all_other_files_are_unchanged(host, user):
    _, plain = look_plain(host, user)
    _, seen = look(host, "--no-start", user=user)
    assert seen["interfaces"] == plain["interfaces"]
    assert seen["tmp"] == plain["tmp"]
    assert set(seen["dev"]) == {*plain["dev"], "infiniband"}
    assert seen["mount_namespace"] != plain["mount_namespace"]


def look_plain(host, user):
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    script = "import json, os; print(json.dumps({" \
        '"interfaces": sorted(os.listdir("/sys/class/net")), "tmp": [os.stat("/tmp").st_dev, os.stat("/tmp").st_ino],' \
        '"dev": sorted(os.listdir("/dev")), "mount_namespace": os.readlink("/proc/self/ns/mnt")}))'
    code, text = host.run(*drop, "/usr/bin/python3", "-c", script)
    return code, json.loads(text)


def test_the_device_still_carries_data_without_root(host):
    """The daemon reaches the program's memory across the user namespace."""
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    words = [*drop, burst_of(host), "run", "--socket", host.socket, "--", "ib_send_bw", "-d", "burst0", "-F", "-n", 200]
    run_pair(host, host, words)


def test_the_host_sees_nothing(host):
    code, text = look(host, "--no-host-files")
    assert code != 0 and "/dev/infiniband/uverbs_burst0" in text
    assert look_plain(host, None)[0] == 0


def test_nested_burst_run_creates_the_files_once(host):
    inner = [burst_of(host), "run", "--socket", host.socket, "--no-start", "--"]
    script = "readlink /proc/self/ns/mnt"
    code, text = host.run(*inner, "sh", "-c", f'{script}; "$@" sh -c "{script}"', "x", *inner)
    assert code == 0, text
    first, second = text.split()
    assert first == second


REFUSALS = {
    "root": ["setpriv", "--bounding-set=-sys_admin"],
    # A user namespace that may have no nested ones. The host's root has no number there.
    "nobody": [
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"BURST_TRUST_SOCKET_OF={NOBODY}",
        "unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"', "x",
    ],
}


@pytest.mark.parametrize("who", REFUSALS)
def test_a_kernel_that_refuses_namespaces_gives_one_sentence(host, who):
    run = [burst_of(host), "run", "--socket", host.socket, "--no-start", "--", "sh", "-c", "echo ran"]
    code, text = host.run(*REFUSALS[who], *run)
    lines = text.splitlines()
    assert code == 0 and lines[-1] == "ran", text
    assert len(lines) == 2 and "refuses" in lines[0] and "--no-host-files" in lines[0], text


# A device as Azure's machines have it, in the kernel's places.
MAKE_FOREIGN = """
mount -t tmpfs new /tmp
mkdir -p /tmp/class/infiniband/mana_0/ports/1 /tmp/class/infiniband_verbs/uverbs0 /tmp/dev/infiniband
for node in null zero full random urandom; do cp -a /dev/$node /tmp/dev; done
mknod /tmp/dev/infiniband/uverbs0 c 231 192
mount -t overlay kernel -o lowerdir=/tmp/class:/sys/class /sys/class && mount --bind /tmp/dev /dev && umount -l /tmp
exec "$@"
"""
FOREIGN_PROBE = "cd /sys/class && ls infiniband infiniband_verbs /dev/infiniband; cat infiniband/burst0/ports/1/state; readlink -f infiniband/burst0/device; ls net"


@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
def test_devices_of_the_kernel_are_hidden(host, user):
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"] if user else []
    shell = ["unshare", "--mount", "sh", "-c", MAKE_FOREIGN, "x", *drop]
    code, text = host.run(*shell, "ls", "/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband")
    assert code == 0 and "mana_0" in text and text.count("uverbs0") == 2, text
    run = [burst_of(host), "run", "--socket", host.socket, "--no-start", "--"]
    expected = ["/dev/infiniband:", "uverbs_burst0", "", "infiniband:", "burst0", "", "infiniband_verbs:", "4: ACTIVE",
                "/sys/class/infiniband/burst0/device", "eth0", "lo"]
    code, text = host.run(*shell, *run, "sh", "-c", FOREIGN_PROBE)
    assert code == 0 and text.splitlines() == expected, text
    # Nor does a program that asks the library find it; a nested run has nothing to do.
    inner = "readlink /proc/self/ns/mnt"
    code, text = host.run(*shell, *run, "sh", "-c", f'ibv_devices; {inner}; "$@" sh -c "{inner}"', "x", *run)
    assert code == 0 and "burst0" in text and "mana_0" not in text, text
    assert len(set(text.split()[-2:])) == 1, text


MAKE_RUN_AND_DEV = """
mount -t tmpfs run /run
mount -t tmpfs dev /tmp
for node in null zero full random urandom; do cp -a /dev/$node /tmp; done
mount --bind /tmp /dev && umount /tmp
echo ready
exec cat
"""


@pytest.fixture
def whole_host(host):
    """`burst host-files` in the host's mount namespace, with the test's own /run and /dev."""
    keeper = subprocess.Popen(
        [*host.prefix(), "unshare", "--mount", "sh", "-c", MAKE_RUN_AND_DEV], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    assert keeper.stdout.readline() == b"ready\n"

    def inside(*words):
        done = subprocess.run(
            ["nsenter", "-t", str(keeper.pid), "--net", "--mount", *map(str, words)], capture_output=True, text=True,
            env=host.environment(), timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    yield inside
    inside(BUILD / "burst", "host-files", "off")
    keeper.stdin.close()
    keeper.wait(60)


def test_host_files_on_and_off(whole_host):
    burst = BUILD / "burst"
    mounts = whole_host("cat", "/proc/mounts")
    devices = whole_host("ls", "-la", "--time-style=+", "/dev")
    assert whole_host(burst, "host-files", "off") == (0, ""), "off without on"
    for _ in range(2):
        assert whole_host(burst, "host-files", "on") == (0, "")
        code, text = whole_host("/usr/bin/python3", "-c", PROBE)
        assert code == 0, text
        seen = json.loads(text)
        assert seen["character"] and seen["access"] and seen["number"] == [1, 7] and seen["listing"] == ["burst0"]
        assert seen["interfaces"] == ["eth0", "lo"]
    # Programs under `burst run` use these files; no namespace is created.
    code, text = whole_host(burst, "run", "--no-start", "--", "/usr/bin/python3", "-c", PROBE)
    assert code == 0 and json.loads(text)["mount_namespace"] == seen["mount_namespace"], text
    for _ in range(2):
        assert whole_host(burst, "host-files", "off") == (0, "")
        assert whole_host("cat", "/proc/mounts") == mounts
        assert whole_host("ls", "-la", "--time-style=+", "/dev") == devices
        # mount(8) keeps its own directory there.
        assert whole_host("ls", "/run") == (0, "mount\n")


def test_host_files_follow_no_link_of_a_daemons_user(whole_host):
    """A daemon's user may own /run/burst and put links, or a list of files to be removed, where root's files shall be."""
    burst, victim = BUILD / "burst", "/run/victim"
    plant = f"mkdir -p /run/burst {victim}; touch {victim}/file; chown -R {NOBODY}:{NOBODY} /run/burst; "
    whole_host("sh", "-c", plant + f"ln -sfn {victim} /run/burst/host-files")
    code, text = whole_host(burst, "host-files", "on")
    assert whole_host("ls", victim) == (0, "file\n"), "written through a link"
    whole_host(burst, "host-files", "off")
    whole_host("sh", "-c", f"rm -rf /run/burst; {plant} mkdir /run/burst/host-files; echo {victim}/file > /run/burst/host-files/made; "
               f"chown -R {NOBODY}:{NOBODY} /run/burst")
    code, text = whole_host(burst, "host-files", "off")
    assert code == 1 and "host-files" in text, text
    assert whole_host("ls", victim) == (0, "file\n"), "removed by a foreign list"
    whole_host("rm", "-r", "/run/burst", victim)


@pytest.mark.skipif(not shutil.which("ucx_info"), reason="ucx_info is missing: apt-get install ucx-utils")
@pytest.mark.parametrize("env", [{}, {"LD_LIBRARY_PATH": "", "LD_PRELOAD": f"{BUILD / 'lib/libibverbs.so.1'}"}], ids=["library-path", "preload"])
def test_ucx_finds_the_device_without_burst_run(whole_host, env):
    """UCX reads /dev/infiniband and /sys/class/infiniband itself, and ignores a device that is missing there."""
    look = ["env", "UCX_NET_DEVICES=burst0:1", *(f"{k}={v}" for k, v in env.items()), "ucx_info", "-d"]
    assert "rc_verbs" not in whole_host(*look)[1]
    assert whole_host(BUILD / "burst", "host-files", "on") == (0, "")
    code, text = whole_host(*look)
    assert code == 0 and "Transport: rc_verbs" in text and "Transport: ud_verbs" in text, text


def test_host_files_keep_other_files(whole_host):
    """A directory that existed before, and files that others put into Burst's directory, stay."""
    burst = BUILD / "burst"
    assert whole_host(burst, "host-files", "on") == (0, "")
    try:
        whole_host("touch", "/dev/infiniband/foreign")
        assert whole_host(burst, "host-files", "off") == (0, "")
        assert whole_host("ls", "/dev/infiniband") == (0, "foreign\n")
        assert whole_host(burst, "host-files", "on") == (0, "")
        assert whole_host("ls", "/dev/infiniband") == (0, "foreign\nuverbs_burst0\n")
        assert whole_host(burst, "host-files", "off") == (0, "")
        assert whole_host("ls", "/dev/infiniband") == (0, "foreign\n")
    finally:
        whole_host("rm", "-r", "/dev/infiniband")


def test_host_files_need_root_and_say_so(host):
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    code, text = host.run(*drop, burst_of(host), "host-files", "on")
    assert code == 1 and "root" in text and len(text.splitlines()) == 1
