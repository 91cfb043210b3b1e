"""Every preset runs in the real loop, moves the weights, and continues from a checkpoint to the same bits."""

import pytest
import torch
import yaml
from safetensors.torch import load_file

from learning.data.rows import write_rows
from schemas.expand import preset_names
from schemas.stages.rl import Rl
from tasks.context import Context
from tasks.rl import run

WORDS = ["ab", "abc", "b", "cab", "ba", "cc"]


def short(rows, completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


def vowels(rows, completions):
    """Right is what holds an a."""
    return [float("a" in text) for text in completions]


def stage(name, **more):
    preset = yaml.safe_load(preset_names()[name].read_text())
    base = {
        "kind": "rl",
        "model": "m",
        "prompts": "p",
        "rewards": [f"{__name__}:vowels", {"use": f"{__name__}:short", "weight": 0.1}],
        "generation_batch_size": 16,
        "num_generations": 8 if name == "pass_at_k" else 4,
        "max_completion_length": 6,
        "max_steps": 3,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "num_mini_batches": 2,
    }
    if name in ("luffy", "chord", "rl_plus"):
        more["extra_samples"] = [{"use": "expert", "data": "e"}]
    if "critic" in preset:
        more["critic"] = {**preset["critic"], "warmup_steps": 1}
    return Rl.model_validate({**base, **preset, **more})


class Killed(Exception):
    """Stands for a process that ends."""


@pytest.fixture
def go(tiny_policy_folder, tmp_path):
    """Run a stage in a folder of its own, killed after an iteration or not; returns the weights."""
    rest = {"answer": "a", "family": "letters", "metadata": "{}"}
    rows = [{"id": w, "prompt": [{"role": "user", "content": w}], **rest} for w in WORDS]
    inputs = {"model": tiny_policy_folder}
    for kind, port in (("prompts", "prompts"), ("chat", "extra_samples.0.data")):
        inputs[port] = tmp_path / kind
        inputs[port].mkdir()
        text = [{"role": "assistant", "content": "aba"}]
        write_rows(inputs[port], kind, [{**row, "completion": text} if kind == "chat" else row for row in rows])

    def go(how, name, attempt=0, killed_after=None):
        def progress(event):
            if event.get("step") == killed_after and "total" in event:
                raise Killed

        folder, checkpoints = tmp_path / f"{name}-{attempt}", tmp_path / f"{name}-checkpoints"
        folder.mkdir()
        checkpoints.mkdir(exist_ok=True)
        run(how, Context(inputs, folder, checkpoints, seed=3, on_progress=progress))
        return load_file(folder / "outputs" / "model" / "model.safetensors")

    return go


@pytest.mark.parametrize("name", preset_names())
def test_preset_trains_and_resumes_to_the_same_bits(go, tiny_policy_folder, name):
    how = stage(name)
    whole = go(how, "whole")
    start = load_file(tiny_policy_folder / "model.safetensors")
    assert any(not torch.equal(whole[key], start[key]) for key in start)
    assert all(bool(tensor.isfinite().all()) for tensor in whole.values())
    with pytest.raises(Killed):
        go(how, "parts", killed_after=3)
    resumed = go(how, "parts", attempt=1)
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
