"""A sweep of the simulator on the workers of Dask (pip install burst-rdma distributed).

usage: sweep_by_dask.py [SCHEDULER]     (as tcp://10.0.0.1:8786, whose workers need burst-rdma; default: two worker processes here)
"""

import sys

from burst_rdma import sim

SCENARIO = {"time": "1ms", "topology": {"kind": "star", "hosts": 5}, "traffic": [{"kind": "incast", "to": 0, "size": "64KiB"}]}
VALUES = {"hosts.cc": ["dctcp", "swift"], "traffic.0.size": ["16KiB", "64KiB"]}


def main() -> None:
    from distributed import Client

    options = {"address": sys.argv[1]} if len(sys.argv) > 1 else {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with Client(**options) as client:
        results = sim.sweep(SCENARIO, VALUES, seeds=[1, 2], executor=client.get_executor())
        workers = len(client.scheduler_info()["workers"])
    print(f"{len(results)} simulations on {workers} workers")
    for result in results:
        print(result.settings, "p99", result.data["traffic"][0]["time_us"]["p99"], "us")


if __name__ == "__main__":
    main()
