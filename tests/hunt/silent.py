#!/usr/bin/env python3
"""A FUSE file system with one file, `f`, whose pages never come: reads are not answered.

usage: silent.py DIRECTORY

Mounts it on DIRECTORY for all users, prints "mounted", and serves until it is killed; then everything that waits for a page fails. Needs
root.
"""

import ctypes
import os
import stat
import struct
import sys

FILE_BYTES = 64 * 4096
#: Operations of linux/fuse.h.
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 36, 42
SILENT = (READ, FORGET, INTERRUPT, BATCH_FORGET)
ENOSYS = 38
#: Seconds for which the kernel keeps names and attributes.
VALID = 100


def attributes(node):
    """`struct fuse_attr`: 88 bytes."""
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o666
    return struct.pack("=6Q10I", node, FILE_BYTES, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(operation, node):
    """The errno and the body of a reply."""
    if operation == INIT:
        return 0, struct.pack("=6I", 7, 31, 65536, 0, 0, 65536).ljust(64, b"\0")
    if operation == GETATTR:
        return 0, struct.pack("=2Q", VALID, 0) + attributes(node)
    if operation == LOOKUP:
        return 0, struct.pack("=5Q", 2, 0, VALID, VALID, 0) + attributes(2)
    if operation == OPEN:
        return 0, bytes(16)
    return ENOSYS, b""


def main():
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"burst", os.fsencode(sys.argv[1]), b"fuse", 0, options.encode()):
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    while True:
        request = os.read(device, 1 << 17)
        _, operation, unique, node = struct.unpack_from("=2I2Q", request)
        if operation in SILENT:
            continue
        errno, body = answer(operation, node)
        os.write(device, struct.pack("=IiQ", 16 + len(body), -errno, unique) + body)


if __name__ == "__main__":
    main()
