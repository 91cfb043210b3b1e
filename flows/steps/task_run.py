"""The task of a step in one process: its reports, its result, its cost."""

import contextlib
import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flows.processes.redaction import make_redactor
from flows.processes.secret_values import find_secrets, resolve_references
from flows.steps.step_spec import TaskReport
from lineage.keys import derive_key, load_signer
from lineage.layout import Layout
from schemas.errors import PosttrainError, StepError, describe_error
from schemas.manifest import NOTICES
from schemas.package import import_path
from schemas.plan import Step
from schemas.sealed import sealing_with
from schemas.stages.union import Stage
from tasks.context import Context, Result


def progress_path(layout: Layout, key: str, attempt: str) -> Path:
    """Return the file into which an attempt writes its reports, one JSON object per line."""
    return layout.work(key) / f"progress-{attempt}.jsonl"


def make_progress_writer(layout: Layout, step: Step, attempt: str) -> Callable[[TaskReport], None]:
    """Return a function that writes reports of an attempt into its progress file."""
    file = progress_path(layout, step.key, attempt)

    def write(report: TaskReport) -> None:
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # the folder's holder may just have removed it
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as stream:
                stream.write(json.dumps(report) + "\n")

    return write


def make_report_listener(layout: Layout, step: Step, attempt: str) -> Callable[[TaskReport], None]:
    """Return a function that passes on what a task reports, without secrets."""
    write, redact = make_progress_writer(layout, step, attempt), make_redactor(find_secrets(step.settings)).value

    def listen(report: TaskReport) -> None:
        counts = {name: report[name] or 0 for name in ("spent", "paid", "paid_tokens") if name in report}
        write(redact(dict(report)) | counts)

    return listen


def run_task(step: Step, context: Context, layout: Layout, folders: Iterable[Path]) -> Result:
    """Return the result of the task, and raise its errors, without the secrets that the settings refer to.

    Its checkpoints are sealed with a key that only the holder of the signing key can make.
    """
    sys.path.extend(str(f) for f in folders if str(f) not in sys.path)
    hide = make_redactor(find_secrets(step.settings))
    try:
        with sealing_with(_derive_checkpoint_key(layout, step)):
            stage = _parse_stage(step)
            result = importlib.import_module(import_path(f"tasks.{stage.task_module}")).run(stage, context)
        details = {**result.details, **({NOTICES: list(result.notices)} if result.notices else {})}
        return Result(hide.value(result.metrics), hide.value(details))
    except PosttrainError as error:
        traceback.print_exc()
        raise StepError(f"{step.name}: {hide.text(str(error))}") from hide.error(error)
    except (Exception, SystemExit) as error:  # a task that ends its process would take the step's messages with it
        traceback.print_exc()
        raise StepError(f"{step.name}: {hide.text(describe_error(error))}") from hide.error(error)


def _derive_checkpoint_key(layout: Layout, step: Step) -> bytes:
    """Return the secret that seals the checkpoints of a step, one per key of a step. Raise PlanError without it."""
    load_signer(layout)  # makes the signing key where there is none
    key = derive_key(layout, f"resuming {step.key}")
    assert key is not None
    return key


def _parse_stage(step: Step) -> Any:
    try:
        return TypeAdapter(Stage).validate_python(resolve_references(step.settings))
    except ValidationError as error:  # its own text shows values, and shortened ones could not be hidden
        wrong = error.errors(include_input=False, include_url=False, include_context=False)
        raise StepError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong)) from None


def measure_peak_rss() -> int:
    """Return the most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_cpu_seconds() -> float:
    """Return the seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
