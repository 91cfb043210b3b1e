"""Services kept running: started in order, started again with back-off when they die, ended in the opposite order."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.processes.process_tree import WaitForStop, die_with_parent, reap_children
from schemas.errors import StepError

LOOK = 0.2
"""Seconds between looks at the services."""
START_LIMIT = 180.0
"""Seconds until a service must answer for the first time; 10 to 20 are usual."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before a service that died is started again; each time twice as long, until it has lived for a while."""
STEADY = 60.0
"""Seconds after which a service that answers is forgiven its earlier ends."""
PATIENCE = 5.0
"""Seconds that a service has to end by itself."""
JOB_PATIENCE = 20.0
"""Seconds that the flow runs of a worker have to stop: they end their steps and leave what can be resumed."""

Say = Callable[[str, str], None]
"""Tells the user (which service, what happened)."""


@dataclass(frozen=True)
class Service:
    """A program to keep running."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    answers: Callable[[float], bool]
    """Whether it does its work, given when it was started (seconds since the epoch)."""
    needs: str = ""
    """A service that must answer before this one is started."""
    jobs: bool = False
    """Its children are work of their own: they go on when it dies, and are asked to stop before it is."""


@dataclass
class RunningService:
    """A service as it stands."""

    service: Service
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    """Seconds since the epoch."""
    due: float = 0.0
    ends: int = 0
    """How often it died since it was steady."""
    answered: bool = False
    """Whether this process of it has answered."""
    answered_ever: bool = False
    jobs: set[int] = field(default_factory=set)
    """Living children of a service with jobs, also of a process of it that died."""


class Supervisor:
    """Keeps services until it is told to stop; `changed` hears whenever a process came or went."""

    def __init__(self, services: Sequence[Service], folder: Path, say: Say, changed: Callable[[dict[str, int]], None]):
        self.kept = {service.name: RunningService(service) for service in services}
        self.folder, self.say, self.changed = folder, say, changed

    def run(self, stopped: WaitForStop, ready: Callable[[], None]) -> None:
        """Keep the services until `stopped`; `ready` is called once, when all answer.

        Raises StepError when a service dies or does not answer before it ever did.
        """
        told = False
        try:
            while not stopped(LOOK):
                self._look()
                if not told and all(kept.answered for kept in self.kept.values()):
                    told = True
                    ready()
        finally:
            self._end()

    def _look(self) -> None:
        before = self.pids()
        for kept in self.kept.values():
            if kept.process is not None and kept.process.poll() is not None:
                self._died(kept)
            needed = self.kept.get(kept.service.needs)
            if kept.process is None and time.time() >= kept.due and (needed is None or needed.answered):
                self._start(kept)
        reap_children({*before.values(), *self.pids().values()})
        if self.pids() != before:
            self.changed(self.pids())
        for kept in self.kept.values():
            if kept.process is not None:
                self._ask(kept)

    def pids(self) -> dict[str, int]:
        """Service to its process."""
        return {name: kept.process.pid for name, kept in self.kept.items() if kept.process is not None}

    def log(self, name: str) -> Path:
        """What a service writes."""
        return self.folder / f"{name}.log"

    def _start(self, kept: RunningService) -> None:
        with self.log(kept.service.name).open("ab") as log:
            kept.process = subprocess.Popen(
                kept.service.command,
                env=kept.service.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        kept.started, kept.answered = time.time(), False

    def _ask(self, kept: RunningService) -> None:
        name = kept.service.name
        if kept.answered:
            if time.time() - kept.started > STEADY:
                kept.ends = 0
        elif kept.service.answers(kept.started):
            if kept.answered_ever:
                self.say(name, "answers again")
            kept.answered = kept.answered_ever = True
        elif not kept.answered_ever and time.time() - kept.started > START_LIMIT:
            raise StepError(f"{name} did not answer within {START_LIMIT:.0f} s; see {self.log(name)}")
        if kept.service.jobs:
            kept.jobs = {pid for pid in kept.jobs if _is_process_alive(pid)} | {
                child.pid for child in _list_children(kept.process)
            }

    def _died(self, kept: RunningService) -> None:
        process = kept.process
        assert process is not None
        name, code = kept.service.name, process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if not kept.answered_ever:
            raise StepError(f"{name} {how} before it answered; see {self.log(name)}")
        if not kept.service.jobs:
            _signal_group(process, signal.SIGKILL)  # what it left would hold its port
        wait = min(FIRST_WAIT * 2**kept.ends, LONGEST_WAIT)
        alive = [pid for pid in kept.jobs if _is_process_alive(pid)]
        going_on = f"; {len(alive)} of its flow runs go on without it" if alive else ""
        self.say(name, f"{how}{going_on}; it is started again in {wait:.0f} s; see {self.log(name)}")
        kept.process, kept.due, kept.ends = None, time.time() + wait, kept.ends + 1

    def _end(self) -> None:
        """End what needs others first: a flow run reports how it stopped to a server that still lives."""
        for kept in reversed(self.kept.values()):
            if kept.service.jobs:
                self._stop_jobs(kept)
            if kept.process is not None:
                _end(kept.process)

    def _stop_jobs(self, kept: RunningService) -> None:
        limit, asked = time.monotonic() + JOB_PATIENCE, set()
        while time.monotonic() < limit:
            kept.jobs |= {child.pid for child in _list_children(kept.process)}
            alive = [pid for pid in kept.jobs if _is_process_alive(pid)]
            if not alive:
                return
            for pid in set(alive) - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                asked.add(pid)
            time.sleep(LOOK)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
    _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _list_children(process: subprocess.Popen[bytes] | None) -> list[psutil.Process]:
    if process is None:
        return []
    try:
        return psutil.Process(process.pid).children()
    except psutil.Error:
        return []


def _is_process_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
