"""Real `posttrain` processes on a checkout of their own, which may be killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.verification.verify import verify
from tests.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
CUT_OFF = 240
"""Seconds after which a process that should have ended is taken for hanging."""


class Checkout:
    """A state folder, a recipe, and the processes that run it."""

    def __init__(self, root, recipe, modules=None):
        self.layout, self.recipe, self.started = Layout(root), root / "recipe.yaml", []
        root.mkdir(parents=True, exist_ok=True)
        self.recipe.write_text(recipe)
        for name, text in (modules or {}).items():
            (root / f"{name}.py").write_text(text)

    def start(self, *words, program=("-m", "flows.cli"), **environment):
        """`posttrain WORDS` in a process group of its own, as a shell would start it; or another Python program."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PREFECT_", "PYTEST_"))}
        more = {"POSTTRAIN_ROOT": str(self.layout.root), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        self.output = self.layout.root / f"output-{len(self.started)}.txt"
        with self.output.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *program, *map(str, words)],
                cwd=self.layout.root,
                env=kept | more | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def run(self, executor):
        return self.start("run", self.recipe, "--executor", executor)

    def go_on(self, executor):
        """`resume`, or `run` when the killed process had not even written its plan."""
        planned = any((self.layout.state / "runs").glob("*/plan.json"))
        return self.start("resume", "--executor", executor) if planned else self.run(executor)

    def finish(self, process):
        code = process.wait(CUT_OFF)
        assert code == 0, self.output.read_text()

    def digests(self):
        """Step to the digests of its outputs, from manifests that verify."""
        problems = verify(self.layout).problems
        assert problems == (), problems
        return {m.step: {n: o.digest for n, o in m.outputs.items()} for m in Store(self.layout).manifests()}

    def processes(self):
        """Everything alive that was started for this state folder, also what lost its parent."""
        mark, matching = str(self.layout.root), []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("POSTTRAIN_ROOT") == mark and process.status() != psutil.STATUS_ZOMBIE:
                    matching.append(process)
        return matching

    def is_quiet(self, seconds=10):
        """Wait until no process is left; fails when one stays."""
        wait_for(lambda: not self.processes(), seconds, said=lambda: [p.cmdline() for p in self.processes()])

    def leftovers(self):
        """Unpublished artifacts and sessions of servers."""
        patterns = ("work/*/tmp-*", "work/*/damaged-*", "ray/r*", "prefect/server.json")
        return [str(p) for pattern in patterns for p in self.layout.state.glob(pattern)]


def tree(process):
    """A process with all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    return []


def kill_tree(process):
    """kill -9 of everything; the parent first, so that nothing is tidied up."""
    victims = tree(process)
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    process.wait()
    psutil.wait_procs(victims, timeout=20)
