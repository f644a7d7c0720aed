"""A server of InfiniStore with a pool of one GiB. The package's own `infinistore.server` is the same with a REST service beside it, and
protects itself from the kernel's end of memory, which a container may not do.

usage: infinistore_server.py PORT"""

import asyncio
import sys

import infinistore
import uvloop


def main():
    config = infinistore.ServerConfig(
        service_port=int(sys.argv[1]), manage_port=18080, dev_name="burst0", link_type=infinistore.LINK_ETHERNET, prealloc_size=1,
        evict_interval=5,
    )
    config.verify()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    infinistore.register_server(loop, config)
    print("serving", flush=True)
    loop.run_forever()


main()
