"""Code and environment of a run: commit, dirty flag, package versions, machine; never environment variables."""

import importlib.metadata
import os
import platform
import subprocess
from functools import lru_cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGES = (
    "posttrain",
    "torch",
    "transformers",
    "peft",
    "ray",
    "prefect",
    "mlflow",
    "dvc",
    "duckdb",
    "pyarrow",
    "numpy",
    "reasoning-gym",
    "gymnasium",
    "minigrid",
    "pillow",
    "pettingzoo",
    "tensordict",
    "torchrl",
    "optuna",
)


@lru_cache
def read_commit(root: Path) -> tuple[str | None, bool]:
    """Return the commit of the checkout and whether it has uncommitted changes; (None, False) outside Git."""
    head = _run_git(root, "rev-parse", "HEAD")
    if head is None:
        return None, False
    return head, bool(_run_git(root, "status", "--porcelain", "--untracked-files=no"))


def _run_git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@lru_cache
def read_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@lru_cache
def describe_machine() -> dict[str, str | int]:
    """Return the kind of this machine, without its name: results can differ in the last bits between kinds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    description: dict[str, str | int] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _read_labelled_value(Path("/proc/cpuinfo"), "model name") or platform.processor() or "unknown",
        "cores": os.cpu_count() or 0,
        "memory": round(memory / 2**30),
    }
    cards = [
        _read_labelled_value(file, "Model") for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    ]
    return description | ({"gpus": ", ".join(filter(None, cards))} if any(cards) else {})


def _read_labelled_value(file: Path, label: str) -> str:
    """Return the first `label: value` of a file of the kernel; empty when there is none."""
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(label)), "")


@lru_cache
def find_needed_packages() -> dict[str, str]:
    """Return name to version of the installed dependencies of this distribution, direct and indirect."""
    waiting = _select_requirements(importlib.metadata.requires("posttrain") or [], "")
    visited: set[tuple[str, str]] = {("posttrain", "")}
    versions: dict[str, str] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        versions[name] = distribution.version
        for extra in ("", *requirement.extras):
            if (name, extra) not in visited:
                visited.add((name, extra))
                waiting += _select_requirements(distribution.requires or [], extra)
    return dict(sorted(versions.items()))


def _select_requirements(texts: list[str], extra: str) -> list[Requirement]:
    """Return the requirements that hold here, for an extra of the package or for none."""
    every = [Requirement(text) for text in texts]
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": extra})]
