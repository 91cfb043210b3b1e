"""The task of a step on one process: what it is given, what it says of itself, what it costs."""

import contextlib
import importlib
import json
import os
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flows.planning.environment import secrets_of, with_environment
from flows.planning.redaction import redactor
from lineage.keys import derive_key, load_signer
from lineage.layout import Layout
from schemas.errors import PosttrainError, StepError
from schemas.plan import Step
from schemas.sealed import sealing_with
from schemas.stages.union import Stage
from tasks.context import Context, Result


def progress_file(layout: Layout, key: str, attempt: str) -> Path:
    """Where a try tells how it goes, one JSON object per line."""
    return layout.work(key) / f"progress-{attempt}.jsonl"


def teller(layout: Layout, step: Step, attempt: str) -> Callable[[dict[str, Any]], None]:
    """Writes events of a try into its progress file."""
    file = progress_file(layout, step.key, attempt)

    def tell(event: dict[str, Any]) -> None:
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # the folder's holder may just have removed it
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as stream:
                stream.write(json.dumps(event) + "\n")

    return tell


def listener(layout: Layout, step: Step, attempt: str) -> tuple[Callable[[dict[str, Any]], None], Counter[str]]:
    """Takes what a task says of itself, passes it on without secrets, and counts what it spends."""
    tell, spent, redact = teller(layout, step, attempt), Counter(), redactor(secrets_of(step.settings)).value

    def hear(event: dict[str, Any]) -> None:
        counts = {word: event[word] for word in ("spent", "paid", "paid_tokens") if word in event}
        spent.update(counts)
        tell(redact(event) | counts)

    return hear, spent


def run_task(step: Step, context: Context, layout: Layout, folders: list[Path]) -> Result:
    """What the task returns. Neither that nor the message of an error holds a secret that the settings refer to.

    What it leaves to be resumed from is sealed with a key that only the holder of the signing key can make.
    """
    sys.path.extend(str(f) for f in folders if str(f) not in sys.path)
    hide = redactor(secrets_of(step.settings))
    try:
        with sealing_with(_resuming_key(layout, step)):
            result = importlib.import_module(f"tasks.{step.kind}").run(_stage(step), context)
        return Result(hide.value(result.metrics), hide.value(result.details))
    except PosttrainError as error:
        traceback.print_exc()
        raise StepError(f"{step.name}: {hide.text(str(error))}") from hide.error(error)
    except (Exception, SystemExit) as error:  # a task that ends its process would take the step's messages with it
        traceback.print_exc()
        raise StepError(f"{step.name}: {type(error).__name__}: {hide.text(str(error))}") from hide.error(error)


def _resuming_key(layout: Layout, step: Step) -> bytes:
    """The secret that seals what a step resumes from; another for every key of a step. Raises PlanError."""
    load_signer(layout)  # makes the signing key where there is none
    key = derive_key(layout, f"resuming {step.key}")
    assert key is not None
    return key


def _stage(step: Step) -> Any:
    try:
        return TypeAdapter(Stage).validate_python(with_environment(step.settings))
    except ValidationError as error:  # its own text shows values, and shortened ones could not be hidden
        wrong = error.errors(include_input=False, include_url=False, include_context=False)
        raise StepError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong)) from None


def peak_rss() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_seconds() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
