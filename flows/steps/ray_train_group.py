"""A step that a group trains: Ray Train runs the same task on every rank, in the step's placement group.

Rank i lives in bundle i, in the process group of the step where it is on the step's machine, so that what ends the
step ends them. Rank 0 alone has the step's folder, its log and its progress. On one machine ranks meet through a file
and communicate over the loopback device: nothing listens on other interfaces.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, TrainingFailedError, get_context
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.torch.config import _set_torch_distributed_env_vars, _setup_torch_process_group, _TorchBackend
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.util import get_current_placement_group

from flows.processes.capture import capture_output
from flows.processes.process_env import make_process_env
from flows.processes.process_tree import ProcessGroup, die_with_parent, use_default_stop_signals
from flows.processes.redaction import make_redactor
from flows.processes.secret_values import find_secrets
from flows.steps.ray_actors import make_actors
from flows.steps.ray_placement import make_bundle
from flows.steps.step_spec import StepSpec, TaskReport
from flows.steps.task_run import make_report_listener, measure_cpu_seconds, measure_peak_rss, run_task
from learning.parallel.group import Group
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.resources import TrainRole
from tasks.context import Context, Result, Spending

QUIET = {
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
}
"""Ray Train without reports that are not used here; it checks its workers four times a second."""
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
LONGEST_WAIT = 86_400
"""Seconds that a rank waits for the others: rewards may be scored in between, and a step has its own time limit."""


@dataclass(frozen=True)
class RankJob:
    """The arguments of every rank."""

    spec: StepSpec
    group: ProcessGroup
    context: Context
    """Without values that contain secrets or cannot be serialised."""


def run_group(spec: StepSpec, context: Context) -> tuple[Result, Spending, int]:
    """Run the task on every rank; return the result of rank 0, what all spent, and the most memory that one has held.

    Raise StepError with the message of the rank that failed first.
    """
    os.environ |= QUIET
    step, work, role = spec.step, spec.work, spec.step.resources.train
    assert role is not None
    for leftover in [*work.glob("failed-*"), *work.glob("rank-*")]:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    bare = replace(context, on_progress=_ignore, actors=None, redact=_unchanged, spending=Spending())
    job = RankJob(spec, ProcessGroup.of_this_process(), bare)
    one_machine = "RAY_ADDRESS" not in os.environ
    trainer = StepTrainer(
        rank_main,
        train_loop_config={"job": job},
        torch_config=_torch_config(role, work / f"meeting-{spec.attempt}" if one_machine else None),
        scaling_config=ScalingConfig(
            num_workers=role.workers, use_gpu=role.num_gpus > 0, resources_per_worker=make_bundle(role)
        ),
        run_config=RunConfig(
            name="ray-train",
            storage_path=str(work),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            # The stubs want callbacks of users; Ray Train takes those of its worker group as well.
            callbacks=[StepPlacement(get_current_placement_group())],  # pyright: ignore[reportArgumentType]
            worker_runtime_env={
                "env_vars": make_process_env(role.num_cpus) | QUIET | (LOOPBACK if one_machine else {})
            },
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        report = trainer.fit().return_value
    except TrainingFailedError as error:
        raise StepError(f"{step.name}: {_first_cause(error, work, spec.attempt, role.workers)}") from None
    assert isinstance(report, RankReport)
    own = context.spending
    spending = replace(report.spending, started=own.started, measure_cpu=lambda: own.measure_cpu() + report.cpu_seconds)
    return report.result, spending, report.peak_rss


@dataclass(frozen=True)
class RankReport:
    """The result of rank 0: the step's result, and the cost of all ranks."""

    result: Result
    spending: Spending
    cpu_seconds: float
    peak_rss: int


def _torch_config(role: TrainRole, meeting: Path | None) -> TorchConfig:
    """Return how the ranks find each other: in a file where one is given, else as Ray Train does."""
    backend = "cpu:gloo,cuda:nccl" if role.num_gpus else "gloo"
    if meeting is None:
        return TorchConfig(backend=backend, timeout_s=LONGEST_WAIT)
    return FileMeeting(backend=backend, timeout_s=LONGEST_WAIT, file=str(meeting))


def rank_main(config: dict[str, RankJob]) -> RankReport | None:
    """Run the step on one rank; rank 0 returns the report of the step."""
    job = config["job"]
    spec, step = job.spec, job.spec.step
    die_with_parent()
    use_default_stop_signals()
    job.group.join()
    role, secret_values = step.resources.train, find_secrets(step.settings)
    assert role is not None
    rank = get_context().get_world_rank()
    listen = make_report_listener(spec.layout, step, spec.attempt)
    with _rank_folder(job.context, rank, spec.work) as (context, log):
        actors, group = make_actors(spec, log), _make_group(role)
        context = replace(
            context,
            group=group,
            device=_find_device(role),
            num_threads=max(1, int(role.num_cpus)),
            on_progress=listen if rank == 0 else _ignore,
            actors=actors,
            redact=make_redactor(secret_values).value,
            # Every rank writes its part of a checkpoint, so every rank is there when one asks for the time of all.
            spending=Spending(lambda: sum(group.gather(measure_cpu_seconds()))),
        )
        with capture_output(log, True, secret_values), contextlib.closing(actors):
            try:
                result = run_task(step, context, spec.layout, spec.folders)
            except StepError as error:
                failed = {
                    "time": time.time(),
                    "rank": rank,
                    "lost": _lost_another(error.__cause__),
                    "message": str(error).removeprefix(f"{step.name}: "),
                }
                (spec.work / f"failed-{spec.attempt}-{rank}").write_text(json.dumps(failed))
                raise StepError(str(error)) from None  # Ray writes an error with its causes into its own logs
    used = group.gather((measure_cpu_seconds(), measure_peak_rss()))
    if rank != 0:
        return None
    spending = replace(context.spending, measure_cpu=time.process_time)  # serialisable: it has no group
    return RankReport(result, spending, sum(cpu for cpu, _ in used), max(peak for _, peak in used))


@contextlib.contextmanager
def _rank_folder(context: Context, rank: int, work: Path) -> Iterator[tuple[Context, Path]]:
    """Yield the context and the log of a rank: those of the step for rank 0, temporary ones for the others."""
    if rank == 0:
        yield context, work / "step.log"
        return
    folder = work / f"rank-{rank}"
    folder.mkdir(exist_ok=True)
    yield replace(context, folder=folder), work / f"rank-{rank}.log"


def _make_group(role: TrainRole) -> Group:
    ranks = get_context()
    return Group(ranks.get_world_rank(), ranks.get_world_size(), role.strategy, _find_device(role))


def _find_device(role: TrainRole) -> str:
    if not role.num_gpus:
        return "cpu"
    device = get_device()
    torch.cuda.set_device(device)
    return str(device)


def _ignore(report: TaskReport) -> None:
    """Drop a report: rank 0 reports for all."""


def _unchanged(values: JsonObject) -> JsonObject:
    return values


def _first_cause(error: TrainingFailedError, work: Path, attempt: str, workers: int) -> str:
    """Return what failed first: a process that died, or the rank that failed before the others lost it."""
    failures = getattr(error, "worker_failures", {})
    failed_ranks = [json.loads(file.read_text()) for file in work.glob(f"failed-{attempt}-*")]
    if causes := [failed for failed in failed_ranks if not failed["lost"]]:
        return min(causes, key=lambda failed: failed["time"])["message"]
    dead = [rank for rank, failure in failures.items() if isinstance(failure, RayActorError)]
    silent = sorted(dead or set(range(workers)) - {failed["rank"] for failed in failed_ranks})
    # If Ray notices the death while it polls, only its message reports it, without the worker's name.
    if failed_ranks or dead or "worker process has died" in str(error):
        which = f"train worker {silent[0]}" if len(silent) == 1 else f"one of its train workers {silent}"
        return f"{which} died (killed, or out of memory)"
    return f"its train workers failed: {str(error).strip().splitlines()[-1]}"


def _lost_another(cause: BaseException | None) -> bool:
    """Return whether a rank failed because another one was gone."""
    return isinstance(cause, torch.distributed.DistError) or "gloo/transport" in str(cause)


class StepTrainer(TorchTrainer):
    """Ray Train without its process that removes placement groups: the step's group is removed with the step."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, PlacementGroupCleanerCallback)]


class StepPlacement(WorkerGroupCallback):
    """Makes Ray Train place its workers in an existing placement group, and leave the group there."""

    def __init__(self, group: Any):
        self.group = group

    @contextlib.contextmanager
    def on_worker_group_start(self) -> Iterator[None]:
        """Replace how the group is made; this runs in Ray Train's controller, a process of this step's own."""
        # A private method with other parameters, replaced for the one group that this process makes.
        setattr(WorkerGroup, "_create_placement_group", lambda *_: KeptGroup(self.group))  # noqa: B010
        yield


class KeptGroup(DefaultPlacementGroupHandle):
    """A placement group that outlives the workers in it."""

    def shutdown(self) -> None:
        """Keep the group: the end of the step removes it."""


@dataclass
class FileMeeting(TorchConfig):
    """Ranks of one machine that find each other in a file."""

    file: str = ""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        """Return the class that makes the process group."""
        return FileMeetingBackend


class FileMeetingBackend(_TorchBackend):
    """torch's process group without a server that listens on every interface."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Make the process group."""
        assert isinstance(backend_config, FileMeeting)
        worker_group.execute(_set_torch_distributed_env_vars)
        size, how = len(worker_group), {"backend": backend_config.backend, "timeout_s": backend_config.timeout_s}
        how |= {"init_method": f"file://{backend_config.file}", "world_size": size}
        calls = [
            worker_group.execute_single_async(i, _setup_torch_process_group, world_rank=i, **how) for i in range(size)
        ]
        ray.get(calls)
