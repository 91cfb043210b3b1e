"""The installed packages that posttrain needs, directly or not, with their versions."""

import importlib.metadata
from functools import lru_cache

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@lru_cache
def needed_packages() -> dict[str, str]:
    """Name to version of the dependencies of this distribution and of theirs, as far as they are installed."""
    waiting = _required(importlib.metadata.requires("posttrain") or [], "")
    seen: set[tuple[str, str]] = {("posttrain", "")}
    found: dict[str, str] = {}
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        for extra in ("", *wanted.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _required(distribution.requires or [], extra)
    return dict(sorted(found.items()))


def _required(texts: list[str], extra: str) -> list[Requirement]:
    """The requirements that hold here, with an extra of the package that has them or without any."""
    every = [Requirement(text) for text in texts]
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": extra})]
