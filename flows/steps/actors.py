"""Actors on Ray: the objects of a step's roles, each in a process of its own that ends with the step.

The processes have the threads that their role's `num_cpus` says, see GPUs only where it has some, write into the
step's log, and on the step's machine belong to its process group: what ends the step ends them.
"""

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from flows.planning.environment import secrets_of
from flows.planning.redaction import redactor
from flows.steps.capture import captured
from flows.steps.family import die_with_parent, end_when_asked
from flows.steps.placement import bundles
from flows.steps.surroundings import surroundings
from learning.parallel.actors import Actors, Factory, Lost, Remote, Threads, said
from schemas.errors import StepError
from schemas.plan import Step
from schemas.stages.base import Resources, bytes_of

Answer = tuple[Any, str | None]
"""What came of a call, or what was wrong."""


def actors_of(spec: dict[str, Any], step: Step, log: Path) -> Actors:
    """The workers of a step's roles: processes where the step itself is one on Ray, else threads."""
    if not spec["whole_process"]:
        return Threads({name: role.workers for name, role in step.resources.roles()})
    home = {"host": socket.gethostname(), "group": os.getpgid(0), "log": str(log), "folders": spec["folders"]}
    return RayActors(step.resources, home | {"secrets": secrets_of(step.settings)})


class Host:
    """What runs in the process of an actor: one object, made when it is first asked to be."""

    def __init__(self, role: str, num_cpus: float, num_gpus: float, home: Mapping[str, Any]):
        die_with_parent()
        end_when_asked()
        if home["host"] == socket.gethostname():
            with contextlib.suppress(PermissionError, ProcessLookupError):  # of another session, or ended just now
                os.setpgid(0, home["group"])
        surroundings(num_cpus)
        if not num_gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        sys.path.extend(f for f in home["folders"] if f not in sys.path)
        self.open = contextlib.ExitStack()
        self.open.enter_context(captured(Path(home["log"]), True, home["secrets"]))
        self.role, self.made, self.broken = role, None, None
        self.redact = redactor(home["secrets"]).text

    def make(self, factory: Factory, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make the object; what is wrong with it is told by every call."""
        self.made, self.broken = self._told(lambda: factory(*args, **kwargs))

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
        """What a method returns, or what it raised in its own words."""
        if self.broken is not None:
            return None, self.broken
        return self._told(lambda: getattr(self.made, method)(*args, **kwargs))

    def _told(self, do: Callable[[], Any]) -> Answer:
        try:
            return do(), None
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            return None, self.redact(str(said(error, self.role)))


class RayActors:
    """The workers of roles; in the bundles of the step's placement group where it has one."""

    def __init__(self, resources: Resources, home: Mapping[str, Any]):
        import ray

        self.ray, self.resources, self.home = ray, resources, home
        self.roles = dict(resources.roles())
        self.at_work: dict[str, list[RayRemote]] = {}

    def size(self, role: str) -> int:
        """Workers of the role in the step's resources."""
        return self.roles[role].workers if role in self.roles else 0

    def start(self, role: str, factory: Factory, *args: Any, **kwargs: Any) -> list[Remote]:
        """One process with one object per worker."""
        if any(remote.alive() for remote in self.at_work.get(role, [])):
            raise StepError(f"role {role}: its workers are at work already; stop them first")
        made = [RayRemote(self, role, index, (factory, args, kwargs)) for index in range(self.size(role))]
        self.at_work[role] = made
        return list(made)

    def restart(self, remote: Remote) -> Remote:
        """A fresh process in the same place."""
        assert isinstance(remote, RayRemote)
        remote.stop()
        fresh = RayRemote(self, remote.role, remote.index, remote.recipe)
        self.at_work[remote.role][remote.index] = fresh
        return fresh

    def close(self) -> None:
        """End every process."""
        for remote in (one for some in self.at_work.values() for one in some):
            remote.stop()

    def process(self, role: str, index: int) -> Any:
        """A new Ray actor in the place of a worker."""
        from ray.util import get_current_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        wanted = self.roles[role]
        options: dict[str, Any] = {"num_cpus": wanted.num_cpus, "num_gpus": wanted.num_gpus, "max_restarts": 0}
        if memory := bytes_of(wanted.memory):
            options["memory"] = memory
        if (group := get_current_placement_group()) is not None:
            places = {"placement_group": group, "placement_group_bundle_index": bundles(self.resources, role)[index]}
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(**places)
        host = self.ray.remote(Host).options(**options)
        return host.remote(role, wanted.num_cpus, wanted.num_gpus, self.home)


class RayRemote:
    """An object in a process of Ray."""

    def __init__(self, actors: RayActors, role: str, index: int, recipe: tuple[Factory, tuple, dict[str, Any]]):
        self.actors, self.role, self.index, self.recipe = actors, role, index, recipe
        self.lost: str | None = None
        self.handle = actors.process(role, index)
        self.handle.make.remote(*recipe)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future:
        """The answer of a method, later."""
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
        """Until it was stopped or a call told that it has died."""
        return self.lost is None

    def _future(self, reference: Any) -> Future:
        answer: Future = Future()

        def heard(told: Future) -> None:
            try:
                value, wrong = told.result()
            except self.actors.ray.exceptions.RayActorError as error:
                first = str(error).strip().splitlines()[0]
                self.lost = self.lost or f"{self.role} worker {self.index}: its process died: {first}"
                answer.set_exception(Lost(self.lost))
            except Exception as error:  # what it returned cannot be read here
                answer.set_exception(said(error, self.role))
            else:
                answer.set_result(value) if wrong is None else answer.set_exception(StepError(wrong))

        reference.future().add_done_callback(heard)
        return answer
