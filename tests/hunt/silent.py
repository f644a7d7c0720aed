#!/usr/bin/env python3
"""A FUSE file system whose pages never come, or come late: of the file `f` reads are not answered.

usage: silent.py DIRECTORY [SEED]

Any other name is a file, too, and SEED decides about each of its reads: most are answered, some late, with an error or with fewer bytes than
were asked for, a few never. Mounts it on DIRECTORY for all users, prints "mounted", and serves until it is killed; then everything that
waits for a page fails. Needs root.
"""

import ctypes
import os
import random
import stat
import struct
import sys
import threading

FILE_BYTES = 64 * 4096
#: Operations of linux/fuse.h.
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 36, 42
SILENT = (FORGET, INTERRUPT, BATCH_FORGET)
ENOSYS, EIO = 38, 5
#: Node of the file `f`. Others follow.
NEVER = 2
#: A late answer comes after this time at most: longer than the daemon waits for a page.
LATE_SECONDS = 1.5
#: A program that maps or unmaps anything waits for the page for which the daemon waits: it does nothing more.
NEVER_ONE_IN = 64
#: Seconds for which the kernel keeps names and attributes.
VALID = 100


def attributes(node):
    """`struct fuse_attr`: 88 bytes."""
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o666
    return struct.pack("=6Q10I", node, FILE_BYTES, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def number(name):
    """The node of a file."""
    digits = name.strip(b"\0").lstrip(b"f")
    return NEVER + 1 + int(digits) if digits else NEVER


def answer(operation, node, body):
    """The errno and the body of a reply to an operation with these bytes."""
    if operation == INIT:
        return 0, struct.pack("=6I", 7, 31, 65536, 0, 0, 65536).ljust(64, b"\0")
    if operation == GETATTR:
        return 0, struct.pack("=2Q", VALID, 0) + attributes(node)
    if operation == LOOKUP:
        return 0, struct.pack("=5Q", number(body), 0, VALID, VALID, 0) + attributes(number(body))
    if operation == OPEN:
        return 0, bytes(16)
    return ENOSYS, b""


def read(node, body, chance):
    """What becomes of a read: seconds after which it is answered, errno, and bytes; None: it is not answered."""
    _, _, size = struct.unpack_from("=2QI", body)
    if node == NEVER or chance.randrange(NEVER_ONE_IN) == 0:
        return None
    what = chance.randrange(8)
    seconds = chance.uniform(0, LATE_SECONDS) if what == 1 else 0
    return (seconds, EIO, b"") if what == 2 else (seconds, 0, bytes(size // 2 if what == 3 else size))


def main():
    chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
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
        seconds, errno, body = read(node, request[40:], chance) or (None, 0, b"") if operation == READ else (0, *answer(operation, node, request[40:]))
        reply = struct.pack("=IiQ", 16 + len(body), -errno, unique) + body
        if seconds:
            threading.Timer(seconds, os.write, [device, reply]).start()
        elif seconds == 0:
            os.write(device, reply)


if __name__ == "__main__":
    main()
