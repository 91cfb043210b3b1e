"""Every optimiser, schedule and precision of docs/training.md trains a model in every kind that has these keys."""

import json
from importlib import import_module

import pytest
import torch
from pydantic import TypeAdapter

from learning.data.rows import write_rows
from learning.models.optimize import learning_rate_at
from learning.models.policy import load_policy
from learning.models.reward_model import load_reward_model
from schemas.stages.union import Stage
from schemas.training import Optimizer, Training
from tasks.context import Context
from tests.tasks.rl_stages import SETTINGS as RL
from tests.tasks.rl_stages import write_prompts

STEPS = 4
SCHEDULES = [
    {"lr_scheduler_type": "constant"},
    {"lr_scheduler_type": "linear", "warmup_ratio": 0.25},
    {"lr_scheduler_type": "cosine", "warmup_steps": 1},
    {"lr_scheduler_type": "cosine_with_min_lr", "min_lr_ratio": 0.1},
    {"lr_scheduler_type": "warmup_stable_decay", "num_decay_steps": 2, "decay_type": "1-sqrt", "min_lr_ratio": 0.2},
    {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 1, "num_decay_steps": 1, "decay_type": "linear"},
]
PRECISIONS = {
    "float32": {},
    "bf16": {"bf16": True},
    "bfloat16": {"dtype": "bfloat16"},
    "lora": {"use_peft": True, "lora_r": 2, "gradient_checkpointing": True},
    "lora-bf16": {"use_peft": True, "lora_r": 2, "bf16": True},
    "lora-bfloat16": {"use_peft": True, "lora_r": 2, "dtype": "bfloat16"},
}
OPTIMIZERS = Optimizer.__args__
KINDS = {
    "sft": {"data": "d"},
    "preference": {"data": "d"},
    "reward_model": {"data": "d"},
    "rl": {**RL, "rewards": ["tests.tasks.test_training_settings:short"]},
}


def short(rows, completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


def write_data(kind, folder):
    """Write the rows of a kind and return the port of their folder."""
    if kind == "rl":
        write_prompts(folder)
        return "prompts"
    folder.mkdir()
    rows = []
    for i in range(12):
        row = {"id": str(i), "prompt": [{"role": "user", "content": f"p{i}"}], "answer": "", "family": "f"}
        if kind == "sft":
            rows.append({**row, "metadata": "{}", "completion": said("abc"[: 1 + i % 3])})
        else:
            rows.append({**row, "metadata": "{}", "chosen": said("xa"), "rejected": said("yb"), "margin": 0.5})
    write_rows(folder, "chat" if kind == "sft" else "preference_pairs", rows)
    return "data"


def said(text):
    return [{"role": "assistant", "content": text}]


def choose(kind, optim):
    """Return schedule and precision of a combination: each kind has every precision, all together every schedule."""
    place = list(KINDS).index(kind) + list(OPTIMIZERS).index(optim)
    names = list(PRECISIONS)
    return SCHEDULES[(2 * place + list(KINDS).index(kind)) % len(SCHEDULES)], names[place % len(names)]


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_trained_at_the_rates_of_its_schedule_in_its_precision(kind, optim, tiny_policy_folder, tmp_path):
    if optim.endswith("_8bit"):
        pytest.importorskip("bitsandbytes")
    schedule, precision = choose(kind, optim)
    given = {"kind": kind, "model": "m", "learning_rate": 3e-3, "max_steps": STEPS, "logging_steps": 1, "optim": optim}
    stage = TypeAdapter(Stage).validate_python({**KINDS[kind], **given, **schedule, **PRECISIONS[precision]})
    inputs = {"model": tiny_policy_folder, write_data(kind, tmp_path / "rows"): tmp_path / "rows"}
    for folder in ("made", "checkpoints"):
        (tmp_path / folder).mkdir()
    context = Context(inputs, tmp_path / "made", tmp_path / "checkpoints", seed=3)
    result = import_module(f"tasks.{kind}").run(stage, context)
    lines = [json.loads(line) for line in (context.folder / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    settings = Training.model_validate({key: getattr(stage, key) for key in Training.model_fields})
    assert rates == pytest.approx([learning_rate_at(settings, step, STEPS) for step in range(STEPS)])
    assert all(torch.isfinite(torch.tensor(line["grad_norm"])) for line in lines if "grad_norm" in line)
    assert str(result.metrics["forward"]).startswith("forest")
    made, start = context.folder / "outputs/model", load_policy(tiny_policy_folder).model
    if kind == "reward_model":
        trained, moved = load_reward_model(made).policy.model.base_model, dict(start.base_model.named_parameters())
    else:
        trained, moved = load_policy(made).model, dict(start.named_parameters())
    changes = [
        float((p.detach().float() - moved[name].detach()).abs().max())
        for name, p in trained.named_parameters()
        if name in moved
    ]
    assert max(changes) > 1e-6
    assert all(torch.isfinite(p).all() for p in trained.parameters())


def test_the_combinations_have_every_schedule_and_precision():
    chosen = [choose(kind, optim) for kind in KINDS for optim in OPTIMIZERS]
    assert {json.dumps(schedule) for schedule, _ in chosen} == {json.dumps(schedule) for schedule in SCHEDULES}
    for kind in KINDS:
        assert {choose(kind, optim)[1] for optim in OPTIMIZERS} == set(PRECISIONS)
