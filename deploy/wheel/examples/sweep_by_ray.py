"""A sweep of the simulator on a cluster of Ray (pip install burst-rdma ray).

usage: sweep_by_ray.py [ADDRESS]     (of a cluster, as ray://10.0.0.1:10001; default: processes here)
"""

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from burst_rdma import sim

SCENARIO = {"time": "1ms", "topology": {"kind": "star", "hosts": 5}, "traffic": [{"kind": "incast", "to": 0, "size": "64KiB"}]}
VALUES = {"hosts.cc": ["dctcp", "swift"], "traffic.0.size": ["16KiB", "64KiB"]}


class RayExecutor(Executor):
    """Each call is a task of Ray, which has no executor of its own."""

    def submit(self, call: Callable[..., Any], /, *words: Any, **named: Any) -> "Future[Any]":
        import ray

        return ray.remote(call).remote(*words, **named).future()


def main() -> None:
    import ray

    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else None)
    results = sim.sweep(SCENARIO, VALUES, seeds=[1, 2], executor=RayExecutor())
    for result in results:
        print(result.settings, "p99", result.data["traffic"][0]["time_us"]["p99"], "us")


if __name__ == "__main__":
    main()
