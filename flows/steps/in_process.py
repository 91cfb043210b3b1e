"""Run steps in this process, one after the other, for tests and debugging.

Reliable time limits need a process per step: `flows.steps.ray_workers`. A stop is always enforced: where a step does
not end, `flows.processes.stop_signals` ends this process.
"""

import ctypes
import threading

from flows.steps.step import run_step
from flows.steps.step_spec import StepSpec
from schemas.errors import PosttrainError, StepError, describe_error
from schemas.manifest import Manifest
from schemas.plan import Step

ONE_AT_A_TIME = threading.Lock()
"""Output is captured and random states are set per process."""


TIMEOUT = 5.0
"""Seconds that a step has to end when it is stopped."""


class StepStopped(BaseException):
    """Raised inside a step that is ended; not an Exception, so that steps do not catch it."""


class RunningStep:
    """A step in a thread."""

    def __init__(self, spec: StepSpec):
        self.manifest: Manifest | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(spec,), daemon=True, name=spec.step.name)
        self.thread.start()

    def _run(self, spec: StepSpec) -> None:
        try:
            with ONE_AT_A_TIME:
                self.manifest = run_step(spec)
        except BaseException as error:
            self.error = error

    def wait(self, seconds: float) -> bool:
        """Return whether the step has ended, after waiting at most that long."""
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def result(self) -> Manifest:
        """Return the manifest of the ended step. Raise StepError if it failed."""
        if isinstance(self.error, PosttrainError):
            raise StepError(str(self.error)) from self.error
        if self.error is not None:
            raise StepError(describe_error(self.error)) from self.error
        if self.manifest is None:
            raise StepError("the step has not ended")
        return self.manifest

    def kill(self) -> None:
        """Raise in the step's thread; a step inside a long call of C code ends after the call, or with the process."""
        identity = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(StepStopped))
        self.thread.join(TIMEOUT)


class InProcess:
    """The executor that runs steps in this process."""

    def check(self, steps: list[Step]) -> None:
        """Accept every step: resources are not counted here."""

    def submit(self, spec: StepSpec) -> RunningStep:
        """Start a step as soon as the one before it has ended."""
        return RunningStep(spec)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""
