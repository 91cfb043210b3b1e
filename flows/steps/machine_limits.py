"""What a machine or a cluster can never run: more cores or memory than its nodes have."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from flows.steps.ray_placement import Bundle, find_misfit, list_bundles
from schemas.errors import PlanError, Problem
from schemas.plan import Step
from schemas.recipe.load import Recipe
from schemas.resources import Resources

NAMES = ("CPU", "GPU", "memory")
GPUS = ("dev/nvidia[0-9]*", "dev/kfd", "dev/dri/renderD*", "dev/dxg")
"""Devices of the drivers of GPUs: NVIDIA's, AMD's, those of the kernel, and that of Windows' Linux."""


def check_machine(steps: list[Step]) -> None:
    """Raise PlanError, before Ray starts, for what this machine can never run; a cluster elsewhere checks itself."""
    if not os.environ.get("RAY_ADDRESS"):
        refuse_impossible(steps, [read_machine()])


def read_machine() -> Bundle:
    """Return cores and memory of this machine; no GPU without the driver of one, else their number is Ray's to find."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = math.inf if any(any(Path("/").glob(pattern)) for pattern in GPUS) else 0.0
    return {"CPU": len(os.sched_getaffinity(0)), "GPU": gpus, "memory": memory}


def refuse_impossible(steps: list[Step], nodes: list[Bundle]) -> None:
    """Raise PlanError with every step whose processes no nodes can ever take."""
    if misfits := find_misfits({step.name: step.resources for step in steps}, nodes):
        has = f"{describe_largest(nodes)}; lower `resources` or use a larger cluster"
        raise PlanError("\n".join([*(f"{name}: {text} (resources)" for name, text in misfits.items()), has]))


def find_misfits(steps: Mapping[str, Resources], nodes: list[Bundle]) -> dict[str, str]:
    """Return by step what its processes need and no nodes have."""
    misfits = {}
    for name, resources in steps.items():
        bundles = list_bundles(resources)
        lone = next((one for one in bundles if find_misfit([one], nodes) is not None), None)
        if lone is not None:
            misfits[name] = f"no node has {_format_amounts(lone)}"
        elif find_misfit(bundles, nodes) is not None:
            total = {key: sum(one.get(key, 0) for one in bundles) for key in NAMES}
            misfits[name] = f"its {len(bundles)} processes need {_format_amounts(total)} at once"
    return misfits


def describe_largest(nodes: list[Bundle]) -> str:
    """Return the most of each resource that one of the nodes has."""
    most = {name: max(n.get(name, 0) for n in nodes) for name in NAMES}
    has = _format_amounts({name: amount for name, amount in most.items() if amount < math.inf})
    has += "" if most["GPU"] else ", no GPU"
    return f"{f'the largest of {len(nodes)} nodes' if len(nodes) > 1 else 'the largest node'} has {has}"


def _format_amounts(amounts: Bundle) -> str:
    return ", ".join(_format_amount(name, amount) for name, amount in amounts.items() if amount)


def _format_amount(name: str, amount: float) -> str:
    return f"memory {amount / 2**30:.4g} GiB" if name == "memory" else f"{name} {amount:g}"


def find_machine_problems(recipe: Recipe) -> list[Problem]:
    """Return the steps that `run` would refuse on this machine; none where RAY_ADDRESS names a cluster."""
    if os.environ.get("RAY_ADDRESS"):
        return []
    nodes = [read_machine()]
    misfits = find_misfits({name: stage.resources for name, stage in recipe.stages.items()}, nodes)
    advice = f"on this machine `run` refuses it: {describe_largest(nodes)}; RAY_ADDRESS names a cluster"
    return [recipe.problem(name, "resources", text, advice) for name, text in misfits.items()]
