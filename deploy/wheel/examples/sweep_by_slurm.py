"""A sweep of the simulator as jobs of Slurm, by submitit (pip install burst-rdma submitit).

usage: sweep_by_slurm.py [DIRECTORY [CLUSTER]]     (DIRECTORY, which all nodes see, gets logs and results: default sweep-jobs; CLUSTER: slurm, or
local for processes here)
"""

import sys

from burst_rdma import sim

SCENARIO = {"time": "1ms", "topology": {"kind": "star", "hosts": 5}, "traffic": [{"kind": "incast", "to": 0, "size": "64KiB"}]}
VALUES = {"hosts.cc": ["dctcp", "swift"], "traffic.0.size": ["16KiB", "64KiB"]}


def main() -> None:
    import submitit

    executor = submitit.AutoExecutor(folder=sys.argv[1] if len(sys.argv) > 1 else "sweep-jobs", cluster=sys.argv[2] if len(sys.argv) > 2 else "slurm")
    executor.update_parameters(timeout_min=10, cpus_per_task=1)
    # submitit's executor has the method that `sweep` calls.
    results = sim.sweep(SCENARIO, VALUES, seeds=[1, 2], executor=executor)
    for result in results:
        print(result.settings, "p99", result.data["traffic"][0]["time_us"]["p99"], "us")


if __name__ == "__main__":
    main()
