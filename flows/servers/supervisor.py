"""Keep services running: start them in order, restart them with back-off when they die, end them in reverse order."""

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
from flows.servers.log_rotation import rotate_log
from schemas.errors import StepError

LOOK = 0.2
"""Seconds between checks of the services."""
START_LIMIT = 180.0
"""Seconds until a service must answer for the first time; 10 to 20 are usual."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before a dead service is restarted: first and longest wait; doubled until the service is steady."""
STEADY = 60.0
"""Seconds of uptime after which a service that answers counts as steady, and its earlier deaths no longer count."""
STOP_TIMEOUT = 5.0
"""Seconds in which a service must end after SIGTERM."""
JOB_STOP_TIMEOUT = 20.0
"""Seconds in which the flow runs of a worker must stop: they end their steps and can be resumed later."""

Say = Callable[[str, str], None]
"""Prints a message: (service, event)."""


@dataclass(frozen=True)
class Service:
    """A program to keep running."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    answers: Callable[[float], bool]
    """Health check; its argument is the start time of the service (seconds since the epoch)."""
    needs: str = ""
    """Name of a service that must answer before this one is started."""
    jobs: bool = False
    """Whether its children are jobs: they continue if it dies, and are stopped before it."""


@dataclass
class RunningService:
    """The state of a service."""

    service: Service
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    """Seconds since the epoch."""
    due: float = 0.0
    ends: int = 0
    """Number of deaths since it was last steady."""
    answered: bool = False
    """Whether its current process has answered."""
    answered_ever: bool = False
    jobs: set[int] = field(default_factory=set)
    """Living jobs of the service, including those of an earlier process that died."""


class Supervisor:
    """Keeps services running until it is stopped; calls `changed` whenever a process starts or ends."""

    def __init__(self, services: Sequence[Service], folder: Path, say: Say, changed: Callable[[dict[str, int]], None]):
        self.services = {service.name: RunningService(service) for service in services}
        self.folder, self.say, self.changed = folder, say, changed

    def run(self, stopped: WaitForStop, ready: Callable[[], None]) -> None:
        """Keep the services until `stopped`; call `ready` once when all answer.

        Raise StepError if a service dies before it first answers, or does not answer in time.
        """
        is_ready = False
        try:
            while not stopped(LOOK):
                self._look()
                if not is_ready and all(running.answered for running in self.services.values()):
                    is_ready = True
                    ready()
        finally:
            self._end()

    def _look(self) -> None:
        before = self.pids()
        for running in self.services.values():
            if running.process is not None and running.process.poll() is not None:
                self._died(running)
            needed = self.services.get(running.service.needs)
            if running.process is None and time.time() >= running.due and (needed is None or needed.answered):
                self._start(running)
        reap_children({*before.values(), *self.pids().values()})
        if self.pids() != before:
            self.changed(self.pids())
        for running in self.services.values():
            if running.process is not None:
                self._ask(running)
            rotate_log(self.log(running.service.name))

    def pids(self) -> dict[str, int]:
        """Return the process id of each service."""
        return {name: running.process.pid for name, running in self.services.items() if running.process is not None}

    def log(self, name: str) -> Path:
        """Return the log of a service."""
        return self.folder / f"{name}.log"

    def _start(self, running: RunningService) -> None:
        with self.log(running.service.name).open("ab") as log:
            running.process = subprocess.Popen(
                running.service.command,
                env=running.service.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        running.started, running.answered = time.time(), False

    def _ask(self, running: RunningService) -> None:
        name = running.service.name
        if running.answered:
            if time.time() - running.started > STEADY:
                running.ends = 0
        elif running.service.answers(running.started):
            if running.answered_ever:
                self.say(name, "answers again")
            running.answered = running.answered_ever = True
        elif not running.answered_ever and time.time() - running.started > START_LIMIT:
            raise StepError(f"{name} did not answer within {START_LIMIT:.0f} s; see {self.log(name)}")
        if running.service.jobs:
            running.jobs = {pid for pid in running.jobs if _is_process_alive(pid)} | {
                child.pid for child in _list_children(running.process)
            }

    def _died(self, running: RunningService) -> None:
        process = running.process
        assert process is not None
        name, code = running.service.name, process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if not running.answered_ever:
            raise StepError(f"{name} {how} before it answered; see {self.log(name)}")
        if not running.service.jobs:
            _signal_group(process, signal.SIGKILL)  # its remaining processes would hold its port
        wait = min(FIRST_WAIT * 2**running.ends, LONGEST_WAIT)
        alive = [pid for pid in running.jobs if _is_process_alive(pid)]
        going_on = f"; {len(alive)} of its flow runs continue without it" if alive else ""
        self.say(name, f"{how}{going_on}; restarting in {wait:.0f} s; see {self.log(name)}")
        running.process, running.due, running.ends = None, time.time() + wait, running.ends + 1

    def _end(self) -> None:
        """Stop dependants first, so that a flow run can report its end to a running server."""
        for running in reversed(self.services.values()):
            if running.service.jobs:
                self._stop_jobs(running)
            if running.process is not None:
                _end(running.process)

    def _stop_jobs(self, running: RunningService) -> None:
        limit, signalled = time.monotonic() + JOB_STOP_TIMEOUT, set()
        while time.monotonic() < limit:
            running.jobs |= {child.pid for child in _list_children(running.process)}
            alive = [pid for pid in running.jobs if _is_process_alive(pid)]
            if not alive:
                return
            for pid in set(alive) - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                signalled.add(pid)
            time.sleep(LOOK)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT)
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
