"""The guest's kernel and initial file system, made from Debian's packages and this machine's own programs.

The kernel is Debian's, downloaded by apt (not installed) and unpacked; of its modules only those that rxe, rdma_cm,
VLANs and two virtio interfaces need are taken. The programs (perftest, rdmacm-utils, ibverbs-utils, iproute2, …) and their
libraries are copied from this machine, where `scripts/install-deps --interop` has put them. Nothing is compressed: an
unpacked ELF kernel starts through the PVH entry without a boot loader, and the emulated processor has nothing to inflate.

A finished image lies in $XDG_CACHE_HOME/burst-interop and is used again until its parts change (`stamp`).
"""

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

GUEST = Path(__file__).resolve().parents[1] / "guest"
# Series of kernels, and the package that depends on the newest of each.
KERNELS = {"6.1": "linux-image-amd64", "6.12": "linux-image-6.12-amd64"}
MODULES = ["virtio_pci", "virtio_net", "crc32_generic", "crc32_pclmul", "ib_uverbs", "rdma_ucm", "rdma_rxe", "8021q"]
PROGRAMS = [
    "ip", "rdma", "ss", "ethtool", "rping", "ucmatose", "udaddy", "cmtime", "rstream", "qperf", "setpriv", "nproc",
    "ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong",
    *(f"ib_{what}_{unit}" for what in ("send", "write", "read", "atomic") for unit in ("bw", "lat")),
]
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
SYSTEM_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
BOOT_SECTOR, PAYLOAD_OFFSET, PAYLOAD_LENGTH = 512, 0x248, 0x24C


class ImageError(Exception):
    """The guest cannot be built; the sentence names the missing part."""


def cache():
    """Directory of packages and finished images."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "burst-interop"


def run(*words, directory=None):
    """Output of a command that must succeed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    clean["PATH"] = f"{SYSTEM_PATH}:{clean.get('PATH', '')}"
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=directory, env=clean)
    if done.returncode:
        raise ImageError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def found(program):
    """Path of a program of the system."""
    path = shutil.which(program, path=SYSTEM_PATH)
    if not path:
        raise ImageError(f"{program} is missing: run scripts/install-deps --interop")
    return Path(path)


def kernel_package(series):
    """The newest kernel of a series as a .deb in the cache, downloaded if it is not there."""
    kept = cache() / "debs"
    kept.mkdir(parents=True, exist_ok=True)
    name = re.search(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", KERNELS[series]))
    if not name:
        raise ImageError(f"apt knows no {KERNELS[series]}: run apt-get update")
    # apt-get looks whether the file is in its directory, complete, and of the newest version.
    run("apt-get", "-o", "APT::Sandbox::User=root", "download", name.group(1), directory=kept)
    return max(kept.glob(f"{name.group(1)}_*.deb"), key=lambda package: package.stat().st_mtime)


def stamp():
    """A hash of all files of this machine that an image contains."""
    digest = hashlib.sha256()
    for path in [Path(__file__), *sorted(GUEST.iterdir())]:
        digest.update(path.read_bytes())
    for program in PROGRAMS:
        state = found(program).stat()
        digest.update(f"{program} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()


def build(series="6.1"):
    """The directory of a finished image: `vmlinux`, `initrd`, `release`."""
    if series not in KERNELS:
        raise ImageError(f"kernels are {', '.join(KERNELS)}; not {series}")
    image, want = cache() / series, stamp()
    if (image / "stamp").exists() and (image / "stamp").read_text() == want:
        return image
    package = kernel_package(series)
    with tempfile.TemporaryDirectory(dir=cache(), prefix="build-") as made:
        made = Path(made)
        kernel, root, out = made / "kernel", made / "root", made / "out"
        out.mkdir()
        run("dpkg-deb", "-x", package, kernel)
        release = next((kernel / "lib/modules").iterdir()).name
        (out / "release").write_text(release)
        (out / "vmlinux").write_bytes(unpacked((kernel / f"boot/vmlinuz-{release}").read_bytes()))
        copy_modules(kernel, release, root / "modules")
        copy_programs(root)
        archive = f"cd {root} && find . | cpio -o -H newc --quiet --owner=0:0 > {out / 'initrd'}"
        run("sh", "-c", archive)
        (out / "stamp").write_text(want)
        shutil.rmtree(image, ignore_errors=True)
        out.rename(image)
    return image


def unpacked(boot_image):
    """The ELF kernel in a bzImage (Linux boot protocol 2.08: payload_offset and payload_length)."""
    sectors = boot_image[0x1F1] or 4
    begin = (sectors + 1) * BOOT_SECTOR + int.from_bytes(boot_image[PAYLOAD_OFFSET:PAYLOAD_OFFSET + 4], "little")
    size = int.from_bytes(boot_image[PAYLOAD_LENGTH:PAYLOAD_LENGTH + 4], "little")
    payload = boot_image[begin:begin + size]
    if payload[:6] == b"\xfd7zXZ\0":
        elf = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(payload)
    elif payload[:4] == b"\x28\xb5\x2f\xfd":
        # The last four bytes are the unpacked size, which zstd does not know.
        elf = subprocess.run(["zstd", "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
    else:
        raise ImageError(f"the kernel is packed in an unknown way ({payload[:6].hex()})")
    if elf[:4] != b"\x7fELF":
        raise ImageError("what was unpacked is not an ELF kernel")
    return elf


def copy_modules(kernel, release, to, modules=MODULES):
    """Puts the modules and what they need into `to`, unpacked, and their names in loading order into `order`."""
    to.mkdir(parents=True)
    run("depmod", "-b", kernel, release)
    order = []
    for module in modules:
        try:
            lines = run("modprobe", "-d", kernel, "-S", release, "--show-depends", module)
        except ImageError:
            if not module.startswith("crc32_"):
                raise
            continue  # built in, or not made for this kernel
        for line in lines.splitlines():
            kind, path = line.split()[:2]
            name = Path(path).name.removesuffix(".xz")
            if kind == "insmod" and name not in order:
                order.append(name)
                data = Path(path).read_bytes()
                (to / name).write_bytes(lzma.decompress(data) if path.endswith(".xz") else data)
    (to / "order").write_text("".join(f"{name}\n" for name in order))


def libraries(files):
    """The shared libraries that these programs and libraries need, the loader included."""
    needed = set()
    for file in files:
        for line in run("ldd", file).splitlines():
            if "not found" in line:
                raise ImageError(f"{file}: {line.strip()}")
            needed |= {Path(word) for word in line.split() if word.startswith("/")}
    return needed


def copy_programs(root):
    """Adds programs, libraries, rxe's provider, the first process, and the program that takes commands."""
    for name in ("bin", "sbin", "lib64", "proc", "sys", "dev", "etc/libibverbs.d"):
        (root / name).mkdir(parents=True)
    target = root / LIBRARIES.relative_to("/")
    (target / "libibverbs").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    files = []
    for name in PROGRAMS:
        files.append(found(name))
        shutil.copy(found(name), root / "bin" / name)
    shutil.copy(found("dash"), root / "bin/sh")
    shutil.copy(found("busybox"), root / "bin/busybox")
    for provider in (LIBRARIES / "libibverbs").glob("librxe-*.so"):
        shutil.copy(provider, target / "libibverbs")
        files.append(provider)
    shutil.copy("/etc/libibverbs.d/rxe.driver", root / "etc/libibverbs.d")
    for library in libraries([*files, found("dash")]) | {LIBRARIES / "libgcc_s.so.1"}:
        place = root / "lib64" if library.name.startswith("ld-linux") else target
        shutil.copy(library, place / library.name)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    shutil.copy(GUEST / "init", root / "init")
    (root / "init").chmod(0o755)
    run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", root / "bin/door", GUEST / "door.c")


if __name__ == "__main__":
    import sys

    for wanted in sys.argv[1:] or KERNELS:
        print(build(wanted))
