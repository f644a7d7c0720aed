"""Packages for Debian, rpm and apk: what they hold, and a Debian in which they are installed, upgraded and purged.

`make packages` runs these with the build for other hosts (tests/conftest.py leaves them out elsewhere). The root of Debian is made by mmdebstrap and kept in target/roots."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import lab
import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = lab.build_directory()
SUITE = "bullseye"
#: All that dpkg may remove: what a root has before, and after a purge.
LIST = r"find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /root -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg -o -path /var/cache \) -prune -o -print | sort"


def made(out):
    done = subprocess.run([ROOT / "scripts" / "packages", "--build", BUILD, "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    return made(tmp_path_factory.mktemp("packages"))


def of_kind(packages, suffix):
    return [path for path in packages if path.suffix == suffix]


def test_the_same_files_make_the_same_bytes(packages, tmp_path):
    again = made(tmp_path)
    assert [path.name for path in again] == [path.name for path in packages] and len(again) == 12
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(packages, again))


def test_lintian_finds_no_error(packages):
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *of_kind(packages, ".deb")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_file_is_in_one_package(packages):
    """And all kinds hold the same, but for what only Debian reads."""
    held = {}
    for path in of_kind(packages, ".deb"):
        listed = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], capture_output=True, check=True).stdout
        names = subprocess.run(["tar", "-t"], input=listed, capture_output=True, check=True).stdout.decode().split()
        held[path.name.split("_")[0]] = {name.lstrip(".").lstrip("/") for name in names if not name.endswith("/")}
    every = [name for names in held.values() for name in names]
    assert len(every) == len(set(every))
    assert {"usr/bin/burst", "usr/bin/burstd", "usr/lib/burst/libibverbs.so.1", "usr/lib/systemd/system/burstd.socket"} <= held["burst-rdma"]
    assert {"usr/bin/burst-proxy", "usr/lib/systemd/system/burst-proxy.service"} <= held["burst-rdma-proxy"]
    assert {"etc/ld.so.conf.d/00-burst.conf", "usr/lib/systemd/system/burst-host-files.service"} <= held["burst-rdma-host"]
    assert "usr/include/burst_urma.h" in held["burst-rdma-dev"]
    wireshark = "usr/lib/x86_64-linux-gnu/wireshark"
    assert {f"{wireshark}/extcap/burst", f"{wireshark}/plugins/burst.lua", f"{wireshark}/plugins/unified_bus.lua"} <= held["burst-rdma-dev"]
    for path in of_kind(packages, ".rpm"):
        name = path.name.rsplit("-0", 1)[0]
        listed = subprocess.run(["rpm", "-qpl", path], capture_output=True, text=True, check=True).stdout.split()
        # Wireshark looks in another folder there.
        there = {re.sub("^usr/lib/.*/wireshark/", "usr/lib64/wireshark/", one) for one in held[name] if "/lintian/" not in one}
        assert {one.lstrip("/") for one in listed} == there


@pytest.fixture(scope="module")
def debian():
    """A root of Debian, of its own for these tests, with rdma-core's libraries and programs."""
    archive = ROOT / "target" / "roots" / f"{SUITE}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        words = ["mmdebstrap", "--variant=minbase", "--include=ibverbs-utils,perftest,iproute2,python3-venv", SUITE, archive.with_suffix(".partial.tar")]
        subprocess.run(words, check=True, capture_output=True)
        archive.with_suffix(".partial.tar").rename(archive)
    place = Path(tempfile.mkdtemp(prefix="burst-debian-"))
    subprocess.run(["tar", "-C", place, "-xf", archive], check=True)
    yield place
    shutil.rmtree(place)


ENTER = """
set -e
mount --bind "$1" "$1"; mount -t proc proc "$1/proc"; mount -t sysfs sys "$1/sys"; mount -t tmpfs tmp "$1/tmp"; mount --rbind /dev "$1/dev"
cd "$1"; mkdir -p mnt; pivot_root . mnt
exec chroot . /bin/sh -c "umount -l /mnt; ip link set lo up; cd /root; export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin BURST_IDLE_EXIT=1s; $2"
"""


def inside(place, script):
    """Runs a script in the root, with namespaces of its own for network, mounts and processes; nothing of it remains but files."""
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    done = subprocess.run([*unshare, "sh", "-c", ENTER, "sh", place, script], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_debian_installs_upgrades_and_purges_them(packages, debian):
    for path in of_kind(packages, ".deb"):
        shutil.copy(path, debian / "root")
    before, users = inside(debian, LIST), inside(debian, "getent passwd | sort")
    # Without the package for the whole host: by the command alone.
    inside(debian, "dpkg -i burst-rdma_*.deb burst-rdma-proxy_*.deb burst-rdma-dev_*.deb")
    assert "burst-proxy" in inside(debian, "getent passwd")
    assert "/usr/lib/x86_64-linux-gnu/libibverbs.so.1" in inside(debian, "ldconfig -p | grep -m 1 libibverbs.so.1")
    assert "burst0" in inside(debian, "burst run -- ibv_devices")
    assert "All is well" in inside(debian, "burst run -- burst doctor")
    assert inside(debian, "burst proxy --version").startswith("burst proxy ")
    inside(debian, "dpkg -i burst-rdma-host_*.deb")
    assert "/usr/lib/burst/libibverbs.so.1" in inside(debian, "ldconfig -p | grep -m 1 libibverbs.so.1")
    assert "burst0" in inside(debian, "burstd --socket /run/burst/burstd.sock --port udp:dev=lo & until ibv_devices | grep burst0; do sleep 0.1; done")
    # An upgrade: all once more, and what it has left is what the packages say.
    inside(debian, "dpkg -i burst-rdma_*.deb burst-rdma-host_*.deb burst-rdma-proxy_*.deb burst-rdma-dev_*.deb")
    assert inside(debian, "dpkg --verify burst-rdma burst-rdma-host burst-rdma-proxy burst-rdma-dev") == ""
    inside(debian, "mkdir -p /var/lib/burst; touch /var/lib/burst/state; dpkg --purge burst-rdma-dev burst-rdma-proxy burst-rdma-host burst-rdma")
    assert set(inside(debian, LIST).split()) ^ set(before.split()) <= {"/mnt"}
    assert inside(debian, "getent passwd | sort") == users
    assert "/usr/lib/x86_64-linux-gnu/libibverbs.so.1" in inside(debian, "ldconfig -p | grep -m 1 libibverbs.so.1")


def test_rpm_installs_upgrades_and_erases_in_a_root(packages, debian):
    """By Debian's rpm in the root of a Debian, which has the packages' shell, ldconfig and useradd: no root of a distribution with rpm is to be had. So what the
    packages ask for is not checked; their files and scripts are. The programs are those of the packages for Debian."""
    files = "find /usr /etc -xdev -type f ! -name '*-' | sort"
    before = inside(debian, files)
    for path in of_kind(packages, ".rpm"):
        shutil.copy(path, debian / "root")
    names = ["burst-rdma-dev", "burst-rdma-proxy", "burst-rdma-host", "burst-rdma"]

    def rpm(*words):
        done = subprocess.run(["unshare", "--net", "rpm", "--root", debian, *words, "--nodeps"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    rpm("-i", *(debian / "root").glob("*.rpm"))
    assert rpm("-V", *names) == ""
    assert "/usr/lib/burst/libibverbs.so.1" in inside(debian, "ldconfig -p | grep -m 1 libibverbs.so.1")
    rpm("-U", "--replacepkgs", *(debian / "root").glob("*.rpm"))
    assert rpm("-V", *names) == ""
    rpm("-e", *names)
    # Users stay, as with other rpm packages: their files may still be somewhere.
    left = set(inside(debian, files).split()) ^ set(before.split())
    assert left <= {"/etc/passwd", "/etc/group"}, left
    assert "/usr/lib/x86_64-linux-gnu/libibverbs.so.1" in inside(debian, "ldconfig -p | grep -m 1 libibverbs.so.1")


def test_the_wheel_runs_on_a_debian_with_glibc_2_31(debian, tmp_path):
    """The oldest glibc that is to be had here; the files ask for 2.28 at most."""
    done = subprocess.run([ROOT / "scripts" / "wheel", "--build", BUILD, "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wheel = next(tmp_path.iterdir())
    assert re.search(r"manylinux_2_(\d+)_", wheel.name).group(1) == "28"
    shutil.copy(wheel, debian / "root")
    inside(debian, "python3 -m venv v && v/bin/python -m pip --disable-pip-version-check install --no-index --no-deps *.whl")
    assert "burst0" in inside(debian, "v/bin/burst-rdma run -- ibv_devices")
    words = "ib_write_bw -d burst0 -F -n 1024 -s 1048576"
    said = inside(debian, f"v/bin/burst run -- sh -c '{words} & until {words} 127.0.0.1; do sleep 0.2; done; wait'")
    assert re.search(r"^ 1048576 +1024 ", said, re.M), said
