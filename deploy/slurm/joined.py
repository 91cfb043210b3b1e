"""Wait until all nodes have joined the Ray cluster at RAY_ADDRESS: python joined.py NODES [SECONDS]."""

import sys
import time

import ray


def main(nodes: int, timeout: float = 600.0) -> None:
    """Raise SystemExit if some nodes have not joined in time."""
    ray.init(log_to_driver=False, logging_level="error")
    until = time.monotonic() + timeout
    while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
        if time.monotonic() > until:
            raise SystemExit(f"{alive} of {nodes} nodes joined the Ray cluster in {timeout:g} s")
        time.sleep(1)
    resources = ray.cluster_resources()
    print(f"Ray: {alive} nodes, {resources.get('CPU', 0):g} cores, {resources.get('GPU', 0):g} GPUs", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(float, sys.argv[2:]))
