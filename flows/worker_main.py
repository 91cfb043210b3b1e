"""What runs in a Ray worker: its own process group, its threads, one step."""

import contextlib
import ctypes
import os
import signal
import socket
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
PR_SET_PDEATHSIG = 1
"""prctl(2): send a signal when the parent dies."""


def work(spec: dict[str, Any]) -> dict[str, Any]:
    """Do a step; {"manifest": ...} or {"error": text}. Nothing that needs the number of threads is imported before."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    surroundings(spec["step"]["resources"]["num_cpus"])
    folder = Path(spec["root"]) / ".posttrain" / "work" / spec["step"]["key"]
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another run may just have finished the step and removed its folder
        (folder / f"pid-{spec['attempt']}").write_text(f"{socket.gethostname()} {os.getpid()}")

    from flows.step import run_step
    from schemas.errors import PosttrainError

    try:
        return {"manifest": run_step(spec)}
    except PosttrainError as error:
        return {"error": str(error)}


def surroundings(num_cpus: float) -> None:
    """Set what libraries of numbers read when they are imported."""
    os.environ |= environment_of(num_cpus)


def environment_of(num_cpus: float) -> dict[str, str]:
    """Variables for one thread per core, and equal results for equal inputs."""
    threads = dict.fromkeys(THREADS, str(max(1, int(num_cpus))))
    return {**threads, "TOKENIZERS_PARALLELISM": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
