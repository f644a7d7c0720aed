"""A guest with an aarch64 processor: kernel, programs and libraries are Debian's packages for arm64, in which nothing of this machine is.

apt downloads them, with what they need, into a directory of its own (`cache()/arm64`): its lists and its word on what is installed are apart from this
machine's. What only an installation would run (scripts, users) is left out. The programs of Burst come later, by `Guest.put`.
"""

import hashlib
import re
import shutil
import tempfile
from pathlib import Path

from .image import GUEST, ImageError, cache, copy_modules, run

KERNEL = "linux-image-arm64"
PACKAGES = ("busybox-static", "dash", "iproute2", "perftest", "rdmacm-utils", "ibverbs-utils", "python3-minimal", "python3-pip")
# Without rdma_rxe, which takes port 4791 when it is loaded.
MODULES = ("virtio_pci", "virtio_net", "veth")
#: Packages that only an installation or a whole system needs.
LEFT_OUT = ("adduser", "cpio", "debconf", "dpkg", "initramfs-tools", "klibc-utils", "kmod", "libklibc", "libpam", "linux-", "logsave", "passwd", "perl", "systemd", "udev")
COMPILER = "aarch64-linux-gnu-gcc"


def apt(place, *words):
    """apt-get for arm64 with lists, archives and status below `place`."""
    for name in ("lists/partial", "archives/partial"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "status").touch()
    options = {
        "APT::Architecture": "arm64", "APT::Architectures::": "arm64", "APT::Sandbox::User": "root", "Debug::NoLocking": "1", "Dir::State::Lists": place / "lists",
        "Dir::State::status": place / "status", "Dir::Cache::archives": place / "archives", "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "",
    }
    return run("apt-get", "-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}")), *words)


def packages():
    """The packages of the guest and of its kernel, downloaded where they are missing."""
    place = cache() / "arm64"
    install = ("-y", "--no-install-recommends", "install", *PACKAGES, KERNEL)
    try:
        apt(place, "--download-only", *install)
    except ImageError:
        # Without lists, or with old ones, whose packages the servers have no more.
        apt(place, "update")
        apt(place, "--download-only", *install)
    # Lines `Inst NAME (VERSION …)`: earlier versions, and other kernels, may lie there, too.
    wanted = re.findall(r"^Inst (\S+) \((\S+) ", apt(place, "--simulate", *install), re.M)
    files = [f"{name}_{version.replace(':', '%3a')}_*.deb" for name, version in wanted]
    return sorted(next((place / "archives").glob(pattern)) for pattern in files)


def stamp(debs):
    """A hash of all of which an image is made."""
    digest = hashlib.sha256()
    for path in [Path(__file__), *sorted(GUEST.iterdir())]:
        digest.update(path.read_bytes())
    digest.update("\n".join(package.name for package in debs).encode())
    return digest.hexdigest()


def build():
    """The directory of a finished image: `vmlinux`, `initrd`, `release`."""
    if not shutil.which(COMPILER):
        raise ImageError(f"{COMPILER} is missing: run scripts/install-deps --aarch64")
    debs = packages()
    image, want = cache() / "aarch64", stamp(debs)
    if (image / "stamp").exists() and (image / "stamp").read_text() == want:
        return image
    with tempfile.TemporaryDirectory(dir=cache(), prefix="build-") as made:
        made = Path(made)
        kernel, root, out = made / "kernel", made / "root", made / "out"
        out.mkdir()
        for package in debs:
            if package.name.startswith("linux-image-6"):
                run("dpkg-deb", "-x", package, kernel)
            elif not package.name.startswith(LEFT_OUT):
                run("dpkg-deb", "-x", package, root)
        release = next((kernel / "lib/modules").iterdir()).name
        (out / "release").write_text(release)
        # Not compressed; QEMU loads it as it is.
        shutil.copy(kernel / f"boot/vmlinuz-{release}", out / "vmlinux")
        copy_modules(kernel, release, root / "modules", MODULES)
        finish(root)
        run("sh", "-c", f"cd {root} && find . | cpio -o -H newc --quiet --owner=0:0 > {out / 'initrd'}")
        (out / "stamp").write_text(want)
        shutil.rmtree(image, ignore_errors=True)
        out.rename(image)
    return image


def finish(root):
    """Adds what an installation would have made, the first process, and the program that takes commands."""
    for name in ("proc", "sys", "dev", "tmp", "run", "root", "sbin", "etc"):
        (root / name).mkdir(exist_ok=True)
    (root / "bin/sh").unlink(missing_ok=True)
    (root / "bin/sh").symlink_to("dash")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nother:x:1001:1001:other:/tmp:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nother:x:1001:\n")
    for name in ("doc", "man", "locale"):
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
    shutil.copy(GUEST / "init", root / "init")
    (root / "init").chmod(0o755)
    run(COMPILER, "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", root / "bin/door", GUEST / "door.c")
