"""The image for containers: what is in it, and pods in which it runs by rootless podman, with the default seccomp profile and without capabilities.

`make image` and `make packages` run these with the build for other hosts (tests/conftest.py leaves them out elsewhere). Podman's user is one of these tests'
own mount namespace only: its copies of /etc/passwd and /etc/subuid lie over the host's there."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import lab
import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = lab.build_directory()
PODS = ROOT / "deploy" / "kubernetes" / "pod-mode"
USER = 20778
ONE_GIB = "ib_write_bw -d burst0 -F -n 1024 -s 1048576"
#: The program starts its server, and clients until one has met it.
MOVE = f"{ONE_GIB} >/tmp/server & until {ONE_GIB} 127.0.0.1; do sleep 0.2; done; wait"
MOVED = re.compile(r"^ 1048576 +1024 ", re.M)

# The control groups of version 2 alone, because crun refuses a host with both versions.
SETUP = f"""
set -e
cd "$1"
mkdir etc user run
for file in passwd group subuid subgid; do cp /etc/$file etc/$file; done
echo "burst-test:x:{USER}:{USER}::$1/user:/bin/sh" >>etc/passwd
echo "burst-test:x:{USER}:" >>etc/group
for file in subuid subgid; do echo "burst-test:1000000:65536" >>etc/$file; done
for file in passwd group subuid subgid; do mount --bind etc/$file /etc/$file; done
umount -l /sys/fs/cgroup && mount -t cgroup2 cgroup /sys/fs/cgroup
mount --make-rshared /
chown {USER}:{USER} user run; chmod 700 run
ip link set lo up
echo ready
exec cat
"""


def made(out):
    """An image of what was built, below `out`."""
    words = [ROOT / "scripts" / "packages", "--build", BUILD, "--out", out, "--kinds", "deb"]
    assert subprocess.run(words, capture_output=True).returncode == 0
    done = subprocess.run([ROOT / "scripts" / "image", "--packages", out, "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.oci.tar"))


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return made(tmp_path_factory.mktemp("image"))


class Podman:
    """Podman of a user without rights, in namespaces that end with this object."""

    def __init__(self, image):
        self.place = Path(tempfile.mkdtemp(prefix="burst-podman-", dir="/tmp"))
        self.place.chmod(0o755)
        words = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "sh", "-c", SETUP, "sh"]
        self.keeper = subprocess.Popen([*words, self.place], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.keeper.stdout.readline() == b"ready\n"
        self.first = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()[0]
        shutil.copy(image, self.place / "image.tar")
        assert "burst-rdma" in self("load", "--input", self.place / "image.tar").stdout

    def __call__(self, *words, code=0):
        """podman WORDS, which must exit with `code`."""
        enter = ["nsenter", "-t", self.first, "--mount", "--net", "--pid", "setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
        env = {"HOME": f"{self.place}/user", "XDG_RUNTIME_DIR": f"{self.place}/run", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        podman = ["podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", *map(str, words)]
        done = subprocess.run([*enter, *podman], env=env, cwd=self.place, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def run(self, *words, options=(), code=0):
        """A container of the image that ends with its program."""
        name = f"localhost/burst-rdma:{version()}"
        return self("run", "--rm", "--cgroups=disabled", "--network", "none", *options, name, *words, code=code)

    def end(self):
        self.keeper.stdin.close()
        self.keeper.wait()
        self.keeper.stdout.close()
        shutil.rmtree(self.place)


def version():
    return re.search(r'^\[workspace\.package\]\nversion = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


@pytest.fixture(scope="module")
def podman(image, namespaces):
    one = Podman(image)
    yield one
    one.end()


def test_the_same_packages_make_the_same_image(image, tmp_path):
    assert made(tmp_path).read_bytes() == image.read_bytes()


def test_the_image_has_programs_and_licences_and_no_more_than_60_megabytes(image):
    assert image.stat().st_size < 60e6
    with tarfile.open(image) as archive:
        read = lambda digest: json.load(archive.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}"))  # noqa: E731
        manifest = read(json.load(archive.extractfile("index.json"))["manifests"][0]["digest"])
        config = read(manifest["config"]["digest"])["config"]
        layer = archive.extractfile(f"blobs/sha256/{manifest['layers'][0]['digest'].removeprefix('sha256:')}")
        with tarfile.open(fileobj=layer, mode="r:gz") as files:
            members = {member.name: member for member in files}
    assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/usr/bin/burst", "run", "--"]
    assert config["Labels"]["org.opencontainers.image.version"] == version()
    assert {"usr/bin/burst", "usr/bin/burstd", "usr/lib/burst/libibverbs.so.1", "usr/share/doc/burst-rdma/copyright", "usr/share/doc/perftest/copyright",
            "var/lib/dpkg/status.d/libc6", "var/lib/dpkg/status.d/burst-rdma"} <= set(members)
    assert not [name for name, member in members.items() if member.mode & 0o6000 and member.isfile()]


def test_a_container_without_network_and_rights_is_well(podman):
    assert "All is well" in podman.run().stdout
    status = podman.run("cat", "/proc/self/status").stdout
    assert re.search(r"^Uid:\s+65532\s", status, re.M) and re.search(r"^Seccomp:\s+2$", status, re.M) and re.search(r"^CapEff:\s+0+$", status, re.M), status


def test_a_gibibyte_moves_by_rdma_on_a_read_only_root(podman):
    options = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    assert MOVED.search(podman.run("sh", "-c", MOVE, options=options).stdout)


def test_nowhere_to_write_is_one_sentence(podman):
    said = podman.run("ibv_devices", options=["--read-only", "--read-only-tmpfs=false"], code=125).stderr
    assert re.fullmatch(r"burst: .*[Rr]ead-only.*\n", said), said


@pytest.mark.parametrize("pod", ["program", "sidecar"])
def test_the_pod_of_the_manifest_moves_a_gibibyte(podman, pod):
    text = (PODS / f"{pod}.yaml").read_text()
    assert f"image: localhost/burst-rdma:{version()}" in text
    manifest = podman.place / f"{pod}.yaml"
    manifest.write_text(text)
    podman("play", "kube", "--network", "none", manifest)
    assert podman("wait", f"burst-{pod}-program").stdout == "0\n", podman("logs", f"burst-{pod}-program").stdout
    assert MOVED.search(podman("logs", f"burst-{pod}-program").stdout)
    podman("pod", "rm", "--force", "--time", "0", f"burst-{pod}")


def test_what_is_missing_is_one_sentence(tmp_path):
    done = subprocess.run([ROOT / "scripts" / "image", "--packages", tmp_path, "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and re.fullmatch(r"image: .*burst-rdma_.*\.deb is missing: run scripts/packages\n", done.stderr), done.stderr
    assert os.listdir(tmp_path) == []
