"""One Ray placement group per step, with a bundle for each of its processes, reserved and released as one.

Bundles of `train` come first, because Ray Train places worker i of a group in bundle i; then the step's own process,
then those of the other roles.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from schemas.errors import StepError
from schemas.resources import Resources, Role, parse_memory

OWN = "own"
"""The step's own process, among the names of roles."""
ORDER = ("train", OWN, "rollout", "reward", "reference", "actor", "policy")
TIMEOUT = 60.0
"""Seconds in which a removed group must be free."""
LOOK = 0.01
"""Seconds between looks."""

Bundle = dict[str, float]


def make_bundle(role: Role | Resources) -> Bundle:
    """Return the resources of one process by the names that Ray uses."""
    amounts = {"CPU": role.num_cpus, "GPU": role.num_gpus, "memory": float(parse_memory(role.memory))}
    return {name: amount for name, amount in amounts.items() if amount}


def list_bundles(resources: Resources) -> list[Bundle]:
    """Return every bundle of a step in order; a process that only waits has none."""
    return [bundle for name in ORDER for bundle in _list_role_bundles(resources, name)]


def find_bundle_indices(resources: Resources, role: str) -> list[int]:
    """Return the bundle index of each worker of a role (or of the step's own process, `own`); empty without bundles."""
    before = sum(len(_list_role_bundles(resources, name)) for name in ORDER[: ORDER.index(role)])
    return list(range(before, before + len(_list_role_bundles(resources, role))))


def _list_role_bundles(resources: Resources, name: str) -> list[Bundle]:
    if name == OWN:
        return [own] if (own := make_bundle(resources)) else []
    role = getattr(resources, name)
    return [make_bundle(role)] * role.workers if role is not None else []


def find_misfit(bundles: Sequence[Bundle], nodes: Sequence[Bundle]) -> Bundle | None:
    """Return the first bundle that fits no empty node, placing the largest first; None if all fit."""
    left = [dict(node) for node in nodes]
    for one in sorted(bundles, key=lambda b: (b.get("GPU", 0), b.get("CPU", 0), b.get("memory", 0)), reverse=True):
        room = next((node for node in left if all(node.get(k, 0) >= v for k, v in one.items())), None)
        if room is None:
            return one
        for name, amount in one.items():
            room[name] -= amount
    return None


class Placement:
    """The placement group of one step."""

    def __init__(self, ray: Any, resources: Resources):
        from ray.util import placement_group

        self.ray = ray
        self.group = placement_group(list_bundles(resources), strategy="PACK")
        self.own = find_bundle_indices(resources, OWN)

    def strategy(self) -> Any:
        """Return how to schedule the step's own process into the group."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=(self.own or [-1])[0])

    def free(self) -> None:
        """Remove the group with its processes. Raise StepError if its resources are not free in time."""
        from ray.util import placement_group_table, remove_placement_group

        remove_placement_group(self.group)
        wait_until(
            lambda: placement_group_table(self.group).get("state") == "REMOVED" and not self._is_reserved(),
            "its placement group is still held",
        )

    def _is_reserved(self) -> bool:
        """Return whether resources still count as this group's; nodes report its removal with a delay."""
        mark = self.group.id.hex()
        return any(mark in name for name in [*self.ray.cluster_resources(), *self.ray.available_resources()])


def is_group_gone(process_group: int) -> bool:
    """Return whether a process group of this machine has no process left."""
    try:
        os.killpg(process_group, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until(condition: Callable[[], bool], otherwise: str, timeout: float = TIMEOUT) -> None:
    """Wait until a condition holds. Raise StepError with `otherwise` after `timeout` seconds."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            raise StepError(f"{otherwise}, {timeout:g} s after it ended; look at the cluster")
        time.sleep(LOOK)
