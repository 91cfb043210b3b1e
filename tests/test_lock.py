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
    for text in project["dependencies"] + project["optional-dependencies"]["dev"]:
        requirement = Requirement(text)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_the_environment_is_the_locked_one():
    wrong = {}
    for name, version in PINS.items():
        found = importlib.metadata.version(name).partition("+")[0]
        if found != version:
            wrong[name] = (found, version)
    assert wrong == {}
