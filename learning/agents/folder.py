"""An agent on disk: one file for each part, so that a change of a part changes only its file.

agent.json        its description          context.json       what the model is shown
environment.json  its environment          experiences.json   experiences from practice
toolkit.json      built-in tools           made.json          generated tools: code and tests
inputs/<port>     artifacts that options of environment and tools name
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from schemas.agent import Agent
from schemas.errors import StepError

PARTS = ("environment", "toolkit", "made", "context", "experiences")
PORTS = ("environment.", "toolkit.")
"""Prefixes of the ports of an `agent` stage whose artifacts its environment and tools read."""


def write_agent(folder: Path, agent: Agent, inputs: Mapping[str, Path] = {}) -> None:
    """Write an agent, with the artifacts of its ports; equal agents give equal bytes."""
    values = agent.model_dump(mode="json")
    for part in PARTS:
        _write(folder / f"{part}.json", values[part])
    _write(folder / "agent.json", {"description": agent.description})
    for port, source in inputs.items():
        if port.startswith(PORTS):
            shutil.copytree(source, folder / "inputs" / port)


def read_agent(folder: Path) -> Agent:
    """Return the agent in a folder; raise StepError if a part is missing or damaged."""
    try:
        values = {part: json.loads((folder / f"{part}.json").read_text(encoding="utf-8")) for part in PARTS}
        return Agent.model_validate({**json.loads((folder / "agent.json").read_text(encoding="utf-8")), **values})
    except (OSError, ValueError, ValidationError) as error:
        raise StepError(f"{folder}: not an agent: {error}") from error


def load_agent(folder: Path | None) -> Agent:
    """Return the agent in a folder, without a folder an empty agent; raise StepError as `read_agent` does."""
    return Agent() if folder is None else read_agent(folder)


def list_inputs(folder: Path) -> dict[str, Path]:
    """Return the artifacts stored with an agent, by port."""
    stored = folder / "inputs"
    return {path.name: path for path in sorted(stored.iterdir())} if stored.is_dir() else {}


def write_practised(folder: Path, before: Path | None, agent: Agent) -> None:
    """Write an agent that differs from the one at `before` only in its experiences."""
    if before is None:
        return write_agent(folder, agent)
    shutil.copytree(before, folder, dirs_exist_ok=True)
    return _write(folder / "experiences.json", agent.experiences)


def _write(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
