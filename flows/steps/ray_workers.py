"""Steps on Ray: each in a fresh worker process that ends with it, so that its memory is released.

Without RAY_ADDRESS a cluster of this machine starts on 127.0.0.1 and ends with the run; with it, that cluster is used
(its nodes must see the same checkout).
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import psutil

from flows.processes.cleanup import RAY_FOLDER_PREFIX
from flows.processes.locks import hold_lock
from flows.processes.process_env import make_python_path
from flows.processes.stop_signals import keep_sigterm_action
from flows.steps.machine_limits import refuse_impossible
from flows.steps.ray_placement import Placement, is_group_gone, wait_until
from flows.steps.ray_worker_main import pid_file, run_worker
from flows.steps.step_spec import StepFailure, StepSpec
from lineage.layout import Layout
from schemas.errors import PlanError, StepError
from schemas.manifest import Manifest
from schemas.plan import Step
from schemas.resources import parse_memory

QUIET = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every listener on 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONHASHSEED": "0",
}
TRIES = 5
"""Number of attempts to start a cluster on this machine."""
STARTS = "ray-start"
"""Folder in the state folder whose lock is held while a cluster starts."""
ESSENTIAL = ("gcs_server", "raylet")
"""Processes of Ray that no run can continue without."""
LONGEST_TEMPORARY = 40
"""Most characters of the path of Ray's folder: paths of Unix sockets in it must stay below 108."""
CONNECTING = 10.0
"""Seconds in which a cluster must accept a connection."""
EXIT_TIMEOUT = 5.0
"""Seconds in which processes of an ended step go by themselves."""
OBJECT_STORE = 100 * 2**20
"""Bytes; specs, manifests, requests and completions pass through, weights do not."""


class RayWorkers:
    """The executor on Ray."""

    def __init__(self, layout: Layout):
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        os.environ["PYTHONPATH"] = make_python_path()
        if not os.environ.get("RAY_ADDRESS"):  # a token for this run; Ray would write one to the home folder
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            # Ray would end this process a minute after its gcs_server died, before it has reported the loss.
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3600")
        import ray
        from ray import _raylet

        # Ray keeps the settings it read when it was imported, which a library may have done before (TorchRL does).
        _raylet.Config.initialize("")  # pyright: ignore[reportAttributeAccessIssue] -- compiled, without stubs
        self.ray = ray
        self.session: TextIO | None = None
        self.temporary: Path | None = None
        self.essential: dict[str, psutil.Process] = {}
        self.helpers: list[psutil.Process] = []
        with keep_sigterm_action():
            self._connect(layout)
        self.work = ray.remote(max_calls=1, max_retries=0)(run_worker)

    def _connect(self, layout: Layout) -> None:
        """Connect to the cluster at RAY_ADDRESS, or start one."""
        if address := os.environ.get("RAY_ADDRESS"):
            environment = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"], "PYTHONHASHSEED": "0"}}
            try:
                _open_connection(address)
                self.ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment
                )
            except (ConnectionError, TimeoutError, socket.gaierror) as error:
                advice = (
                    "start it, or unset the variable; if it needs a token: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or "
                    "~/.ray/auth_token"
                )
                raise PlanError(f"no Ray cluster answers at RAY_ADDRESS={address}; {advice}") from error
        else:
            self._start(layout)

    def _start(self, layout: Layout) -> None:
        """Start a cluster on this machine; try again on a busy machine, as Ray gives itself 30 seconds.

        Runs of a checkout that begin together, as schedules do, start their clusters one after the other.
        """
        for left in reversed(range(TRIES)):
            before = set(psutil.Process().children())
            self.temporary = _make_session_folder(layout)
            self.session = (self.temporary / "lock").open("w")
            fcntl.flock(self.session, fcntl.LOCK_EX)  # marks the folder as used for `clean_up`
            try:
                with hold_lock(layout.state / STARTS):
                    self.ray.init(
                        address="local",
                        num_cpus=len(os.sched_getaffinity(0)),
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        object_store_memory=OBJECT_STORE,
                        _temp_dir=str(self.temporary),
                    )
            except Exception as error:  # Ray raises bare ones here
                for process in set(psutil.Process().children()) - before:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                self.close()
                if not left:
                    raise PlanError(f"Ray did not start, {TRIES} times: {str(error).splitlines()[0]}") from error
            else:
                self.essential = {p.name(): p for p in psutil.Process().children() if p.name() in ESSENTIAL}
                self.helpers = [c for p in self.essential.values() for c in p.children(recursive=True)]
                return

    def check(self, steps: list[Step]) -> None:
        """Raise PlanError with every step that no node can ever take."""
        nodes = [n["Resources"] for n in self.ray.nodes() if n["Alive"]]
        refuse_impossible(steps, nodes)

    def submit(self, spec: StepSpec) -> "SubmittedStep":
        """Queue a step until a node has its resources. Raise StepError if Ray has died."""
        self.verify_alive()
        step = spec.step
        options = {"num_cpus": step.resources.num_cpus, "num_gpus": step.resources.num_gpus, "name": step.name}
        if (memory := parse_memory(step.resources.memory)) > 0:
            options["memory"] = memory
        placement = None
        if any(step.resources.roles()):
            placement = Placement(self.ray, step.resources)
            options["scheduling_strategy"] = placement.strategy()
        reference = self.work.options(**options).remote(replace(spec, own_process=True))
        return SubmittedStep(self.ray, reference, pid_file(spec), self.verify_alive, placement)

    def verify_alive(self) -> None:
        """Raise StepError if a Ray process that was started here has died: Ray itself would wait for minutes."""
        for name, process in self.essential.items():
            try:
                alive = process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                alive = False
            if not alive:
                raise StepError(f"Ray died ({name}: killed, or out of memory)")

    def close(self) -> None:
        """End the cluster that was started here and remove its files."""
        self.ray.shutdown()
        for helper in self.helpers:  # agents of a raylet wait for a gcs_server that died
            with contextlib.suppress(psutil.Error):
                helper.kill()
        if self.temporary is not None and self.session is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
            self.session.close()


class SubmittedStep:
    """A step on Ray; one with roles ends only when its placement group is free."""

    def __init__(
        self,
        ray: Any,
        reference: Any,
        pid_file: Path,
        verify_alive: Callable[[], None],
        placement: Placement | None = None,
    ):
        self.ray, self.reference, self.pid_file, self.verify_alive = ray, reference, pid_file, verify_alive
        self.placement = placement
        self.process_group: int | None = None

    def wait(self, seconds: float) -> bool:
        """Return whether the step has ended, after waiting at most that long. Raise StepError if Ray has died."""
        ended = bool(self.ray.wait([self.reference], timeout=seconds)[0])
        if self.placement is not None and self.process_group is None:
            self.process_group = self._process_group()  # the file goes with the step's work folder
        if not ended:
            try:
                self.verify_alive()
            except StepError:
                self._end()  # it would continue without supervision
                raise
        return ended

    def result(self) -> Manifest:
        """Return the manifest of the ended step. Raise StepError if it failed or its process died."""
        try:
            answer = self.ray.get(self.reference)
        except self.ray.exceptions.RayError as error:
            self.verify_alive()
            self._end()
            first = str(error).strip().splitlines()[0]
            raise StepError(f"its worker process died (killed, or out of memory): {first}") from error
        finally:
            self._free()
        if isinstance(answer, StepFailure):
            raise StepError(answer.message)
        return answer

    def kill(self) -> None:
        """End the worker process and those of its roles, and on this machine everything they started."""
        self._end()
        self.ray.cancel(self.reference, force=True)
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.get(self.reference, timeout=10)
        self._free()

    def _end(self) -> None:
        """Kill the worker's process group if it is on this machine; its roles' processes belong to it."""
        group = self.process_group or self._process_group()
        if group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _free(self) -> None:
        """Release the placement group once, when no process is left; a Ray that died has released it."""
        placement, self.placement = self.placement, None
        if placement is not None:
            self.verify_alive()
            placement.free()
            if self.process_group is not None:
                left = partial(is_group_gone, self.process_group)
                with contextlib.suppress(StepError):  # Ray prints a warning for one that is killed as it leaves
                    wait_until(left, "", EXIT_TIMEOUT)
                self._end()
                wait_until(left, "processes of its roles are still there")

    def _process_group(self) -> int | None:
        if not self.pid_file.is_file():
            return None
        host, _, pid = self.pid_file.read_text().partition(" ")
        return int(pid) if host == socket.gethostname() else None


def _make_session_folder(layout: Layout) -> Path:
    """Return a new folder for Ray's session: in the state folder, unless its path is too long for Ray's sockets."""
    inside = layout.state / "ray"
    inside.mkdir(parents=True, exist_ok=True)
    if len(str(inside)) + 9 <= LONGEST_TEMPORARY:
        return Path(tempfile.mkdtemp(prefix="r", dir=inside))
    return Path(tempfile.mkdtemp(prefix=RAY_FOLDER_PREFIX))


def _open_connection(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself tries for minutes. Words such as `auto` pass."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECTING).close()


def find_cluster_problems() -> list[str]:
    """Return how Ray or Python here differ from the cluster at RAY_ADDRESS; empty where that is not set."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return []
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    import ray

    try:
        _open_connection(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError) as error:
        message = " ".join(str(error).split())
        return [f"the cluster at RAY_ADDRESS={address}: {message[:400]}"]
    finally:
        ray.shutdown()
    return []
