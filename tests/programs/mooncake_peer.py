"""A peer of Mooncake's transfer engine, for test_mooncake.py.

mooncake_peer.py serve NAME PLACE: registers memory that holds a pattern, tells where it is in the file PLACE, waits for the file
PLACE.done, and checks that the memory holds what the other peer wrote.
mooncake_peer.py use NAME PLACE: reads that memory, checks it, writes another pattern, and makes PLACE.done.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from mooncake.engine import TransferEngine

LEN = 8 << 20
SECONDS = 30
FIRST, SECOND = (bytes((i * step) % 251 for i in range(251)) * (LEN // 251 + 1) for step in (7, 13))


def must(true, what):
    if not true:
        sys.exit(f"wrong: {what}")


def await_file(path):
    limit = time.monotonic() + SECONDS
    while not path.exists():
        must(time.monotonic() < limit, f"no {path}")
        time.sleep(0.01)


role, name, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
done = Path(f"{place}.done")
engine = TransferEngine()
must(engine.initialize(name, "P2PHANDSHAKE", "rdma", "burst0") == 0, "initialize")
memory = (ctypes.c_char * LEN)()
at = ctypes.addressof(memory)
must(engine.register_memory(at, LEN) == 0, "register_memory")
if role == "serve":
    memory[:] = FIRST[:LEN]
    draft = place.with_suffix(".draft")
    draft.write_text(json.dumps([f"{name}:{engine.get_rpc_port()}", at]))
    draft.rename(place)
    await_file(done)
    must(memory.raw == SECOND[:LEN], "what the other peer wrote")
else:
    await_file(place)
    peer, there = json.loads(place.read_text())
    must(engine.transfer_sync_read(peer, at, there, LEN) == 0, "transfer_sync_read")
    must(memory.raw == FIRST[:LEN], "what was read")
    memory[:] = SECOND[:LEN]
    must(engine.transfer_sync_write(peer, at, there, LEN) == 0, "transfer_sync_write")
    done.touch()
must(engine.unregister_memory(at) == 0, "unregister_memory")
print("checked", flush=True)
# The engine's threads may outlive the interpreter's end.
os._exit(0)
