"""Engines in worker processes of a step are killed, and the step itself: the artifact is the undisturbed one."""

import os
import signal

import psutil
import pytest

LAB = '''
import os
import time
from pathlib import Path

from learning.generation.engines.torch import Engine as Torch

ROOT = Path(os.environ["POSTTRAIN_ROOT"])


class Engine(Torch):
    """Writes down what it is asked; once it has given 20 completions it waits until the file `go` is there."""

    def __init__(self, policy):
        super().__init__(policy)
        self.given = 0

    def flight(self, sampling):
        flight = super().flight(sampling)
        add, step = flight.add, flight.step

        def noted(ticket, request):
            with (ROOT / f"asked-{os.getpid()}").open("a") as file:
                file.write(f"{request.seed}\\n")
            add(ticket, request)

        def held():
            made = step()
            self.given += len(made)
            if self.given >= 20 and not (ROOT / "go").exists():
                (ROOT / f"held-{os.getpid()}").touch()
                while not (ROOT / "go").exists():
                    time.sleep(0.02)
            return made

        flight.add, flight.step = noted, held
        return flight
'''
RECIPE = """
name: sharded
seed: 3
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}
    tokenizer: {use: characters, alphabet: "0123456789+-= ab"}
    max_length: 96
  samples:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 40, style: short}]
    model: base
    num_generations: 2
    max_completion_length: 12
    rewards: [{use: wording.keywords, words: [a, b, ab, aa], per_character: 0.05}]
    min_reward: -100
    engine: "killed_lab:Engine"
"""
APART = "    resources: {num_cpus: 0.5, rollout: {workers: 2, num_cpus: 0.5}}\n"


def held(checkout, number):
    """Pids of the workers that wait, once there are so many; rows are in the journal then."""
    numbers = [int(p.name.rpartition("-")[2]) for p in checkout.layout.root.glob("held-*")]
    return numbers if len(numbers) >= number and rows(checkout) else None


def rows(checkout):
    """Lines of the journal, which lies in the step's work folder."""
    lines = [p.read_text().count("\n") for p in checkout.layout.state.glob("work/*/checkpoints/sampled.jsonl")]
    return sum(lines)


def asked(checkout):
    """Seeds of the requests that engines were given, in all."""
    return [seed for p in checkout.layout.root.glob("asked-*") for seed in p.read_text().split()]


@pytest.fixture
def wanted(checkout):
    """Digests of the run in one process, with engines that are never held."""
    calm = checkout("calm", RECIPE, {"killed_lab": LAB})
    (calm.layout.root / "go").touch()
    calm.finish(calm.run("inprocess"))
    assert len(asked(calm)) == 40
    return calm.digests()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_worker_changes_nothing(checkout, processes, wanted):
    run = checkout("run", RECIPE + APART, {"killed_lab": LAB})
    process = run.run("ray")
    first, _ = processes.wait_for(lambda: held(run, 2), 400)
    os.kill(first, signal.SIGKILL)
    (run.layout.root / "go").touch()
    run.finish(process)
    assert run.digests() == wanted
    assert len(set(asked(run))) == 40
    assert len(list(run.layout.root.glob("asked-*"))) == 3
    run.is_quiet(60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_workers_die_with_their_step_which_resumes_at_the_row(checkout, processes, wanted):
    run = checkout("run", RECIPE + APART, {"killed_lab": LAB})
    process = run.run("ray")
    workers = processes.wait_for(lambda: held(run, 2), 400)
    (pid_path,) = run.layout.state.glob("work/*/pid-*")
    os.kill(int(pid_path.read_text().split()[1]), signal.SIGKILL)
    assert process.wait(400) == 1
    assert not any(psutil.pid_exists(pid) for pid in workers)
    run.is_quiet(60)
    kept, before = rows(run), len(asked(run))
    assert 0 < kept < 40
    (run.layout.root / "go").touch()
    run.finish(run.go_on("ray"))
    assert run.digests() == wanted
    assert len(asked(run)) - before == 40 - kept
    assert run.leftovers() == []
