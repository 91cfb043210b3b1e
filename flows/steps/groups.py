"""A step that a group trains: Ray Train runs the very same task on every rank, in the step's placement group.

Rank i lives in bundle i, in the process group of the step where it is on the step's machine, so that what ends the
step ends them. Rank 0 alone has the step's folder, its log and its progress. On one machine ranks meet through a file
and talk over the loopback device: nothing listens to the outside.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, TrainingFailedError, get_context
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.torch.config import _set_torch_distributed_env_vars, _setup_torch_process_group, _TorchBackend
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.util import get_current_placement_group

from flows.planning.environment import secrets_of
from flows.planning.redaction import redactor
from flows.steps.actors import actors_of
from flows.steps.capture import captured
from flows.steps.family import die_with_parent, end_when_asked
from flows.steps.placement import bundle
from flows.steps.surroundings import environment_of
from flows.steps.task_run import cpu_seconds, listener, peak_rss, run_task
from learning.parallel.group import Group
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.plan import Step
from schemas.stages.base import TrainRole
from tasks.context import Context, Result

QUIET = {
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
}
"""Ray Train without what nobody here reads; it looks after its workers four times a second."""
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
LONGEST_WAIT = 86_400
"""Seconds that a rank waits for the others: rewards are scored meanwhile, and a step has a time limit of its own."""


def run_group(spec: dict[str, Any], step: Step, context: Context, work: Path) -> tuple[Result, dict[str, float]]:
    """What the task returns on rank 0, and what it said to have spent. Raises StepError with the first rank's words."""
    os.environ |= QUIET
    role = step.resources.train
    assert role is not None
    meeting = work / f"meeting-{spec['attempt']}"
    for left in [*work.glob("failed-*"), *work.glob("rank-*")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    home = {"host": socket.gethostname(), "group": os.getpgid(0)}
    bare = replace(context, on_progress=_nobody, actors=None, redact=_unchanged)  # what holds secrets does not travel
    given = {"spec": spec, "home": home, "context": bare}
    backend = "cpu:gloo,cuda:nccl" if role.num_gpus else "gloo"
    here = "RAY_ADDRESS" not in os.environ
    config = Meeting if here else TorchConfig
    trainer = InOurPlace(
        rank_main,
        train_loop_config=given,
        torch_config=config(backend=backend, timeout_s=LONGEST_WAIT, **({"file": str(meeting)} if here else {})),
        scaling_config=ScalingConfig(
            num_workers=role.workers, use_gpu=role.num_gpus > 0, resources_per_worker=bundle(role)
        ),
        run_config=RunConfig(
            name="ray-train",
            storage_path=str(work),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            callbacks=[OurPlace(get_current_placement_group())],
            worker_runtime_env={"env_vars": environment_of(role.num_cpus) | QUIET | (LOOPBACK if here else {})},
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        told = trainer.fit().return_value
    except TrainingFailedError as error:
        raise StepError(f"{step.name}: {_first_words(error, work, spec['attempt'], role.workers)}") from None
    return Result(told["metrics"], told["details"]), told["spent"]


def rank_main(given: dict[str, Any]) -> dict[str, Any] | None:
    """The step on one rank; what rank 0 returns is the step's."""
    spec, step = given["spec"], Step.model_validate(given["spec"]["step"])
    _belong(given["home"])
    role, layout = step.resources.train, Layout(Path(spec["root"]))
    assert role is not None
    rank, work = get_context().get_world_rank(), layout.work(step.key)
    hear, spent = listener(layout, step, spec["attempt"])
    with _place(given["context"], rank, work) as (context, log):
        context = replace(context, group=_group(role), device=_device(role), num_threads=max(1, int(role.num_cpus)))
        context = replace(context, on_progress=hear if rank == 0 else _nobody, actors=actors_of(spec, step, log))
        context = replace(context, redact=redactor(secrets_of(step.settings)).value)
        with captured(log, True, secrets_of(step.settings)), contextlib.closing(context.actors):
            try:
                result = run_task(step, context, layout, [Path(f) for f in spec["folders"]])
            except StepError as error:
                failed = {"time": time.time(), "rank": rank, "lost": _lost_another(error.__cause__)}
                failed["said"] = str(error).removeprefix(f"{step.name}: ")
                (work / f"failed-{spec['attempt']}-{rank}").write_text(json.dumps(failed))
                raise StepError(str(error)) from None  # Ray writes an error with its causes into its own logs
    assert context.group is not None
    used = context.group.gather((cpu_seconds(), peak_rss()))
    spent.update({"cpu_seconds": sum(cpu for cpu, _ in used), "peak_rss": max(peak for _, peak in used)})
    return {"metrics": result.metrics, "details": result.details, "spent": dict(spent)} if rank == 0 else None


@contextlib.contextmanager
def _place(context: Context, rank: int, work: Path) -> Iterator[tuple[Context, Path]]:
    """Where a rank writes: rank 0 as the step does, others where it is thrown away, with a log of their own."""
    if rank == 0:
        yield context, work / "step.log"
        return
    folder = work / f"rank-{rank}"
    folder.mkdir(exist_ok=True)
    yield replace(context, folder=folder), work / f"rank-{rank}.log"


def _belong(home: dict[str, Any]) -> None:
    """End with Ray's node, and on the step's machine with the step."""
    die_with_parent()
    end_when_asked()
    if home["host"] == socket.gethostname():
        with contextlib.suppress(PermissionError, ProcessLookupError):  # it has ended just now
            os.setpgid(0, home["group"])


def _group(role: TrainRole) -> Group:
    found = get_context()
    return Group(found.get_world_rank(), found.get_world_size(), role.strategy, _device(role))


def _device(role: TrainRole) -> str:
    if not role.num_gpus:
        return "cpu"
    device = get_device()
    torch.cuda.set_device(device)
    return str(device)


def _nobody(event: dict[str, Any]) -> None:
    """Nobody hears."""


def _unchanged(values: dict[str, Any]) -> dict[str, Any]:
    return values


def _first_words(error: TrainingFailedError, work: Path, attempt: str, workers: int) -> str:
    """What went wrong first: a process that died, or the rank that failed before the others lost it."""
    failures = getattr(error, "worker_failures", {})
    said = [json.loads(file.read_text()) for file in work.glob(f"failed-{attempt}-*")]
    if causes := [failed for failed in said if not failed["lost"]]:
        return min(causes, key=lambda failed: failed["time"])["said"]
    dead = [rank for rank, failure in failures.items() if isinstance(failure, ray.exceptions.RayActorError)]
    silent = sorted(dead or set(range(workers)) - {failed["rank"] for failed in said})
    # Ray may notice the death while it asks for news, and then tells it in words alone, of nobody.
    if said or dead or "worker process has died" in str(error):
        which = f"train worker {silent[0]}" if len(silent) == 1 else f"one of its train workers {silent}"
        return f"{which} died (killed, or out of memory)"
    return f"its train workers failed: {str(error).strip().splitlines()[-1]}"


def _lost_another(cause: BaseException | None) -> bool:
    """Whether what a rank met is that another one was not there any more."""
    return isinstance(cause, torch.distributed.DistError) or "gloo/transport" in str(cause)


class InOurPlace(TorchTrainer):
    """Ray Train without the process that removes placement groups of its own: the step's is removed with the step."""

    def _create_default_callbacks(self) -> list[Any]:
        kept = super()._create_default_callbacks()
        return [callback for callback in kept if not isinstance(callback, PlacementGroupCleanerCallback)]


class OurPlace(WorkerGroupCallback):
    """Lets Ray Train put its workers into a placement group that exists, and leave it there."""

    def __init__(self, group: Any):
        self.group = group

    @contextlib.contextmanager
    def on_worker_group_start(self) -> Iterator[None]:
        """Runs in Ray Train's controller, a process of this step's own."""
        WorkerGroup._create_placement_group = lambda *_: Kept(self.group)
        yield


class Kept(DefaultPlacementGroupHandle):
    """A placement group that outlives the workers in it."""

    def shutdown(self) -> None:
        """The step's end removes it."""


@dataclass
class Meeting(TorchConfig):
    """Ranks of one machine find each other in a file."""

    file: str = ""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        """How the process group is made."""
        return MeetingBackend


class MeetingBackend(_TorchBackend):
    """torch's process group without a server that listens on every interface."""

    def on_start(self, worker_group: Any, backend_config: Meeting) -> None:
        """Make the process group."""
        worker_group.execute(_set_torch_distributed_env_vars)
        size, how = len(worker_group), {"backend": backend_config.backend, "timeout_s": backend_config.timeout_s}
        how |= {"init_method": f"file://{backend_config.file}", "world_size": size}
        calls = [
            worker_group.execute_single_async(i, _setup_torch_process_group, world_rank=i, **how) for i in range(size)
        ]
        ray.get(calls)
