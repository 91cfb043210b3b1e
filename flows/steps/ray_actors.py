"""Actors on Ray: the objects of a step's roles, each in a process of its own that ends with the step.

These processes have as many threads as their role's `num_cpus`, see GPUs only where it has some, write into the step's
log, and join the step's process group on its machine: what ends the step ends them.
"""

import contextlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.processes.capture import capture_output
from flows.processes.process_env import set_process_env
from flows.processes.process_tree import ProcessGroup, die_with_parent, use_default_stop_signals
from flows.processes.redaction import make_redactor
from flows.processes.secret_values import find_secrets
from flows.steps.ray_placement import find_bundle_indices
from flows.steps.step_spec import StepSpec
from learning.parallel.actors import Actors, Factory, Lost, Remote, Threads, describe_error
from schemas.errors import StepError
from schemas.resources import Resources, parse_memory

Recipe = tuple[Factory, Sequence[object], Mapping[str, object]]
"""How an object is made: its factory with arguments."""
Answer = tuple[Any, str | None]
"""The value that a call returned, or its error."""


@dataclass(frozen=True)
class StepHome:
    """The data of an actor about its step."""

    group: ProcessGroup
    log: Path
    folders: tuple[Path, ...]
    """Folders in which the user's modules are searched."""
    secrets: frozenset[str]


def make_actors(spec: StepSpec, log: Path) -> Actors:
    """Return the workers of a step's roles: processes where the step itself is one on Ray, else threads."""
    resources = spec.step.resources
    if not spec.own_process:
        return Threads({name: role.workers for name, role in resources.roles()})
    home = StepHome(ProcessGroup.of_this_process(), log, spec.folders, find_secrets(spec.step.settings))
    return RayActors(resources, home)


class ActorHost:
    """The process of an actor: it holds one object, made by its first call."""

    def __init__(self, role: str, num_cpus: float, num_gpus: float, home: StepHome):
        die_with_parent()
        use_default_stop_signals()
        home.group.join()
        set_process_env(num_cpus)
        if not num_gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        folders = map(str, home.folders)
        sys.path.extend(folder for folder in folders if folder not in sys.path)
        self.capture = contextlib.ExitStack()
        self.capture.enter_context(capture_output(home.log, True, home.secrets))
        self.role, self.object, self.error = role, None, None
        self.redact = make_redactor(home.secrets).text

    def make(self, factory: Factory, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Make the object; if that fails, every call returns the error."""
        self.object, self.error = self._attempt(lambda: factory(*args, **kwargs))

    def call(self, method: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Answer:
        """Return the value of a method, or its error as text."""
        if self.error is not None:
            return None, self.error
        return self._attempt(lambda: getattr(self.object, method)(*args, **kwargs))

    def _attempt(self, call: Callable[[], Any]) -> Answer:
        try:
            return call(), None
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            return None, self.redact(str(describe_error(error, self.role)))


class RayActors:
    """The workers of roles, in the bundles of the step's placement group if it has one."""

    def __init__(self, resources: Resources, home: StepHome):
        import ray

        self.ray, self.resources, self.home = ray, resources, home
        self.roles = dict(resources.roles())
        self.at_work: dict[str, list[RayRemote]] = {}

    def size(self, role: str) -> int:
        """Return the workers of a role in the step's resources."""
        return self.roles[role].workers if role in self.roles else 0

    def start(self, role: str, factory: Factory, *args: Any, **kwargs: Any) -> list[Remote]:
        """Start one process with one object per worker."""
        if any(remote.alive() for remote in self.at_work.get(role, [])):
            raise StepError(f"role {role}: its workers are already running; stop them first")
        remotes = [RayRemote(self, role, index, (factory, args, kwargs)) for index in range(self.size(role))]
        self.at_work[role] = remotes
        return list(remotes)

    def restart(self, remote: Remote) -> Remote:
        """Start a fresh process in the same place."""
        assert isinstance(remote, RayRemote)
        remote.stop()
        fresh = RayRemote(self, remote.role, remote.index, remote.recipe)
        self.at_work[remote.role][remote.index] = fresh
        return fresh

    def close(self) -> None:
        """End every process."""
        for remote in itertools.chain.from_iterable(self.at_work.values()):
            remote.stop()

    def start_process(self, role: str, index: int) -> Any:
        """Start a new Ray actor in the place of a worker."""
        from ray.util import get_current_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        settings, strategy = self.roles[role], None
        if (group := get_current_placement_group()) is not None:
            strategy = PlacementGroupSchedulingStrategy(group, find_bundle_indices(self.resources, role)[index])
        host = self.ray.remote(ActorHost).options(
            num_cpus=settings.num_cpus,
            num_gpus=settings.num_gpus,
            max_restarts=0,
            memory=parse_memory(settings.memory) or None,
            scheduling_strategy=strategy,
        )
        return host.remote(role, settings.num_cpus, settings.num_gpus, self.home)


class RayRemote:
    """An object in a process of Ray."""

    def __init__(self, actors: RayActors, role: str, index: int, recipe: Recipe):
        self.actors, self.role, self.index, self.recipe = actors, role, index, recipe
        self.lost: str | None = None
        self.handle = actors.start_process(role, index)
        self.handle.make.remote(*recipe)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future:
        """Return a future of the value of a method."""
        if self.lost is not None:
            answer: Future = Future()
            answer.set_exception(Lost(self.lost))
            return answer
        return self._future(self.handle.call.remote(method, args, kwargs))

    def stop(self) -> None:
        """Kill the process."""
        self.lost = self.lost or f"{self.role} worker {self.index}: stopped"
        self.actors.ray.kill(self.handle, no_restart=True)

    def alive(self) -> bool:
        """Return whether it was not stopped, and no call has found that it died."""
        return self.lost is None

    def _future(self, reference: Any) -> Future:
        answer: Future = Future()

        def settle(ended: Future) -> None:
            try:
                value, message = ended.result()
            except self.actors.ray.exceptions.RayActorError as error:
                first = str(error).strip().splitlines()[0]
                self.lost = self.lost or f"{self.role} worker {self.index}: its process died: {first}"
                answer.set_exception(Lost(self.lost))
            except Exception as error:  # what it returned cannot be read here
                answer.set_exception(describe_error(error, self.role))
            else:
                answer.set_result(value) if message is None else answer.set_exception(StepError(message))

        reference.future().add_done_callback(settle)
        return answer
