"""Two agents of NIXL in one process: one writes 16 MiB into memory of the other by the backend UCX, which loads the wheel's own copies of UCX and libibverbs."""

import sys

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config

SIZE = 1 << 24


def main():
    source, target = numpy.random.default_rng(1).integers(0, 256, SIZE, dtype=numpy.uint8), numpy.zeros(SIZE, dtype=numpy.uint8)
    ends = {}
    for name, memory in (("writer", source), ("owner", target)):
        agent = ends[name] = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    writer = ends["writer"]
    peer = writer.add_remote_agent(ends["owner"].get_agent_metadata())
    ours, theirs = (writer.get_xfer_descs([(memory.ctypes.data, SIZE, 0)], "DRAM") for memory in (source, target))
    handle = writer.initialize_xfer("WRITE", ours, theirs, peer, b"written")
    state = writer.transfer(handle)
    while state == "PROC":
        state = writer.check_xfer_state(handle)
    if state != "DONE" or not (source == target).all():
        sys.exit(f"state {state}, equal: {bool((source == target).all())}")
    print(f"checked {SIZE} bytes")


main()
