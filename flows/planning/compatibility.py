"""Find installed packages that do not fit each other, from their own metadata.

A training stack fails in odd places when versions have drifted apart: an operator is missing, a cluster does not
answer, a model loads with other defaults. This check runs before anything else.
"""

import importlib.metadata
from collections import deque
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from flows.planning.installed import OURS, WHEELS, find_version


def find_misfits(roots: Iterable[str] = (OURS, *WHEELS)) -> list[str]:
    """Return every requirement that is not met, of all installed distributions that the roots lead to.

    A distribution that is not installed is skipped: extras are optional.
    """
    misfits: dict[str, None] = {}
    waiting, seen = deque((name, frozenset[str]()) for name in roots), set()
    while waiting:
        name, extras = waiting.popleft()
        if (name, extras) in seen or (version := find_version(name)) is None:
            continue
        seen.add((name, extras))
        for requirement in _list_requirements(name, extras):
            installed = find_version(requirement.name)
            if installed is None:
                continue
            misfits |= dict.fromkeys(_compare_requirement(name, version, requirement, installed))
            waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return [*misfits, *_find_duplicate_wheels()]


def _list_requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield the requirements of a distribution on this machine; for ours, those of every extra as well."""
    for text in importlib.metadata.requires(name) or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        of_ours = name == OURS and "extra" in str(marker)
        if of_ours or marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield requirement


def _compare_requirement(name: str, version: str, requirement: Requirement, installed: str) -> Iterator[str]:
    try:
        there, own = Version(installed), Version(version)
    except InvalidVersion:
        return
    if not requirement.specifier.contains(there, prereleases=True):
        yield f"{name} {version} wants {requirement.name}{requirement.specifier}, installed is {installed}"
    elif requirement.name == "torch" and _is_pinned(requirement) and own.local != there.local and name != OURS:
        yield (
            f"{name} {version} was built for another torch than {installed}: install the build of {name} that belongs "
            f"to it, or remove {name}"
        )


def _is_pinned(requirement: Requirement) -> bool:
    """Return whether exactly one version fits, of any build: the mark of compiled code that links to it."""
    return any(one.operator == "==" and "+" not in one.version for one in requirement.specifier)


def _find_duplicate_wheels() -> Iterator[str]:
    if all(find_version(name) for name in WHEELS):
        both = " and ".join(WHEELS)
        yield f"{both} are both installed, and both are the package vllm: remove both, then install one of them"
