"""Code and environment of a run: commit, dirty flag, package versions. Environment variables are never recorded."""

import importlib.metadata
import platform
import subprocess
from functools import lru_cache
from pathlib import Path

PACKAGES = (
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
)


@lru_cache
def commit(root: Path) -> tuple[str | None, bool]:
    """Commit of the checkout and whether it has uncommitted changes; (None, False) outside Git."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return None, False
    return head, bool(_git(root, "status", "--porcelain", "--untracked-files=no"))


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@lru_cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
