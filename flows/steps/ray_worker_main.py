"""The main function of a Ray worker: its own process group, its threads, one step."""

import contextlib
import os
import socket
from pathlib import Path

from flows.processes.process_env import set_process_env
from flows.processes.process_tree import die_with_parent, use_default_stop_signals
from flows.steps.step_spec import StepFailure, StepSpec
from schemas.errors import PosttrainError, describe_error
from schemas.manifest import Manifest


def run_worker(spec: StepSpec) -> Manifest | StepFailure:
    """Run a step and return its manifest, or why it failed. Modules that read the number of threads come after it."""
    die_with_parent()
    use_default_stop_signals()
    os.setpgid(0, 0)
    set_process_env(spec.step.resources.num_cpus)
    try:
        spec.work.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another run may just have finished the step
            pid_file(spec).write_text(f"{socket.gethostname()} {os.getpid()}")
        from flows.steps.step import run_step  # torch comes with it, and reads the number of threads

        return run_step(spec)
    except PosttrainError as error:
        return StepFailure(str(error))
    except OSError as error:  # of publishing, for example on a full disk: the process is not dead
        return StepFailure(describe_error(error))


def pid_file(spec: StepSpec) -> Path:
    """Return the file that names the machine and the process of an attempt."""
    return spec.work / f"pid-{spec.attempt}"
