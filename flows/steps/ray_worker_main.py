"""What runs in a Ray worker: its own process group, its threads, one step."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from flows.processes.process_env import surroundings
from flows.processes.process_tree import die_with_parent, end_when_asked


def work(spec: dict[str, Any]) -> dict[str, Any]:
    """Do a step; {"manifest": ...} or {"error": text}. Nothing that needs the number of threads is imported before."""
    die_with_parent()
    end_when_asked()
    os.setpgid(0, 0)
    surroundings(spec["step"]["resources"]["num_cpus"])
    folder = Path(spec["root"]) / ".posttrain" / "work" / spec["step"]["key"]
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another run may just have finished the step and removed its folder
        (folder / f"pid-{spec['attempt']}").write_text(f"{socket.gethostname()} {os.getpid()}")

    from flows.steps.step import run_step
    from schemas.errors import PosttrainError

    try:
        return {"manifest": run_step(spec)}
    except PosttrainError as error:
        return {"error": str(error)}
