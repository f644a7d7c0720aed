"""A client of InfiniStore: writes blocks under keys over RDMA, finds them, reads them back by another connection, compares.

usage: infinistore_client.py ADDRESS PORT"""

import asyncio
import sys

import infinistore
import numpy

BLOCK, BLOCKS, ROUNDS = 64 << 10, 16, 8


def connect():
    config = infinistore.ClientConfig(
        host_addr=sys.argv[1], service_port=int(sys.argv[2]), link_type=infinistore.LINK_ETHERNET, dev_name="burst0",
        connection_type=infinistore.TYPE_RDMA,
    )
    connection = infinistore.InfinityConnection(config)
    connection.connect()
    return connection


def main():
    writer, reader = connect(), connect()
    for turn in range(ROUNDS):
        source = numpy.random.default_rng(turn).integers(0, 256, BLOCK * BLOCKS, dtype=numpy.uint8)
        found = numpy.zeros_like(source)
        keys = [(f"{turn}-{block}", block * BLOCK) for block in range(BLOCKS)]
        writer.register_mr(source.ctypes.data, source.nbytes)
        reader.register_mr(found.ctypes.data, found.nbytes)
        asyncio.run(writer.rdma_write_cache_async(keys, BLOCK, source.ctypes.data))
        assert writer.check_exist(keys[-1][0])
        asyncio.run(reader.rdma_read_cache_async(keys, BLOCK, found.ctypes.data))
        assert (found == source).all()
    assert reader.delete_keys(["0-0", "0-1"]) == 2 and not reader.check_exist("0-0")
    try:
        asyncio.run(reader.rdma_read_cache_async([("0-0", 0)], BLOCK, found.ctypes.data))
    except infinistore.InfiniStoreKeyNotFound:
        pass
    else:
        raise AssertionError("a deleted key was found")
    writer.close()
    reader.close()
    print("checked", flush=True)


main()
