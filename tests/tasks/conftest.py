"""A stage that trains, in folders of its own, and may be interrupted."""

import json
from types import SimpleNamespace

import pytest
import torch

from learning.models.policy import load_policy, save_policy
from learning.rl.monitoring import TIMED as OF_STREAMS
from tasks.context import Context
from tests.tasks.rl_stages import write_prompts

TIMED = {"time", "tokens_per_second", "generation_seconds", *OF_STREAMS}


class Stopped(Exception):
    """What a test throws to interrupt a stage."""


def stop_at(step):
    def on_progress(event):
        if event.get("step") == step and "total" in event:
            raise Stopped

    return on_progress


def files(context):
    """Every published file, as bytes."""
    outputs = context.folder / "outputs"
    return {str(p.relative_to(outputs)): p.read_bytes() for p in sorted(outputs.rglob("*")) if p.is_file()}


def curve(context):
    """The curves without what is timed."""
    lines = [json.loads(line) for line in (context.folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMED} for line in lines]


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    """The inputs of an rl stage: a tiny policy and a table of prompts."""
    return {"model": tiny_policy_folder, "prompts": write_prompts(tmp_path / "prompts")}


@pytest.fixture
def at(inputs, tmp_path):
    """A context in a folder of its own; the same name shares checkpoints."""

    def make(name, attempt=0, on_progress=lambda event: None):
        folder = tmp_path / f"{name}-{attempt}"
        folder.mkdir()
        checkpoints = tmp_path / f"{name}-checkpoints"
        checkpoints.mkdir(exist_ok=True)
        return Context(inputs, folder, checkpoints, seed=3, on_progress=on_progress)

    return make


@pytest.fixture
def training():
    """The helpers above, for tests."""
    return SimpleNamespace(files=files, curve=curve, stop_at=stop_at, Stopped=Stopped)


@pytest.fixture
def same_when_interrupted(at):
    """Run a stage whole, and once more interrupted at some steps: results, files, curves and tokens are equal."""

    def check(run, stage, steps):
        whole = at("whole")
        result = run(stage, whole)
        for attempt, step in enumerate(steps):
            with pytest.raises(Stopped):
                run(stage, at("broken", attempt, stop_at(step)))
        last = at("broken", len(steps))
        assert run(stage, last) == result
        assert files(last) == files(whole)
        assert curve(last) == curve(whole)
        assert last.spending.total().tokens == whole.spending.total().tokens > 0
        assert not steps or 0 < last.spending.earlier.tokens < last.spending.total().tokens
        return curve(whole)

    return check


@pytest.fixture
def two_models(tiny_policy_folder, tmp_path):
    """The tiny policy and a copy with other weights, as the models of an evaluation."""
    other = load_policy(tiny_policy_folder)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    save_policy(other, tmp_path / "other")
    return {"models.one": tiny_policy_folder, "models.two": tmp_path / "other"}
