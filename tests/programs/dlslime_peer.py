"""One end of a test of DLSlime's RDMA endpoints; `serve` on one host, `use` on the other. They tell each other their queue pairs and
regions, as JSON over a TCP connection.

usage: dlslime_peer.py serve|use ADDRESS PORT (the server's)

The user writes a megabyte into the server's memory, in chunks, reads it back and compares."""

import ctypes
import json
import os
import socket
import sys

import dlslime

SIZE, CHUNK, QUEUE_PAIRS = 1 << 20, 64 << 10, 2


def conversation(role, address):
    """Line-wise files from and to the other end."""
    if role == "serve":
        with socket.create_server(address) as listener:
            print("listening", flush=True)
            connected, _ = listener.accept()
    else:
        connected = socket.create_connection(address)
    return connected.makefile("r"), connected.makefile("w")


def exchange(lines, value):
    """Sends a value, returns the other end's."""
    reader, writer = lines
    print(json.dumps(value), file=writer, flush=True)
    return json.loads(reader.readline())


def move(endpoint, mine, theirs):
    """Writes the first half of the memory into the server's, and reads it into the second half."""
    chunks = range(0, SIZE, CHUNK)
    # Local region, remote region, offset there, offset here, length.
    assert endpoint.write([(mine, theirs, at, at, CHUNK) for at in chunks]).wait() == 0
    assert endpoint.read([(mine, theirs, at, SIZE + at, CHUNK) for at in chunks]).wait() == 0


def main():
    role, address = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
    memory = ctypes.create_string_buffer(2 * SIZE)
    pattern = os.urandom(SIZE)
    context = dlslime.RDMAContext()
    assert context.init("burst0", 1, "RoCE") == 0
    pool = dlslime.RDMAMemoryPool(context)
    mine = pool.register_memory_region(ctypes.addressof(memory), 2 * SIZE, "memory")
    assert mine >= 0
    worker = dlslime.RDMAWorker("burst0", 0)
    endpoint = dlslime.RDMAEndpoint(pool, QUEUE_PAIRS, worker)
    worker.add_endpoint(endpoint)
    worker.start()
    lines = conversation(role, address)
    endpoint.connect(exchange(lines, endpoint.endpoint_info()))
    theirs = endpoint.register_remote_memory_region("theirs", exchange(lines, endpoint.mr_info())["memory"])
    exchange(lines, "ready")
    if role == "use":
        ctypes.memmove(memory, pattern, SIZE)
        move(endpoint, mine, theirs)
        assert memory.raw[SIZE:] == pattern
    exchange(lines, "done")
    worker.stop()
    print("checked", flush=True)


main()
