"""Stages over models that the packed forward cannot do: their numbers are the model's own, and the metrics say so."""

import json

import pytest

from learning.data.rows import write_rows
from learning.data.tokenizers import characters
from learning.models.policy import Policy, save_policy
from schemas.stages.preference import Preference
from schemas.stages.reward_model import RewardModel
from schemas.stages.rl import Rl
from tasks import preference, reward_model, rl
from tasks.context import Context
from tests.models.families import make_family

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed
KINDS = {
    "mistral": "agrees with its own forward",
    "lfm2": "layers of conv",
    "qwen3_5_text": "layers of linear_attention",
}
OPTIMISER = {"learning_rate": 1e-3, "max_steps": 2, "save_steps": 10, "logging_steps": 1}


def short(rows, completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


def context_of(kind, tmp_path, port, columns, rows):
    tokenizer = characters()
    tokenizer.model_max_length = 96
    model = make_family(kind, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    save_policy(Policy(model, tokenizer, 96), tmp_path / "policy")
    for folder in ("data", "made", "checkpoints"):
        (tmp_path / folder).mkdir()
    write_rows(tmp_path / "data", columns, rows)
    inputs = {"model": tmp_path / "policy", port: tmp_path / "data"}
    return Context(inputs, tmp_path / "made", tmp_path / "checkpoints", seed=3)


def pairs():
    rest = {"answer": "", "family": "f", "metadata": "{}", "margin": 0.5}
    sides = [("a" * n, "b" * (6 - n)) for n in range(1, 6)]
    return [
        {"id": str(i), "prompt": [{"role": "user", "content": f"p{i}"}], "chosen": said(a), "rejected": said(b), **rest}
        for i, (a, b) in enumerate(sides * 4)
    ]


def said(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize("kind", KINDS)
def test_rl_samples_and_trains_on_the_same_log_probabilities(kind, tmp_path):
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    prompts = [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in ("ab", "abc", "b", "cab")]
    stage = Rl.model_validate(
        {
            "kind": "rl",
            "model": "m",
            "prompts": "p",
            "advantage": ["center", "scale"],
            "ratio": "token",
            "policy_loss": "clipped",
            "loss_aggregation": "sequence_mean",
            "rewards": [f"{__name__}:short"],
            "generation_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 8,
            **OPTIMISER,
        }
    )
    context = context_of(kind, tmp_path, "prompts", "prompts", prompts)
    metrics = rl.run(stage, context).metrics
    curve = [json.loads(line) for line in (context.folder / "metrics.jsonl").read_text().splitlines()]
    assert curve[0]["logprob_gap"] < 1e-5
    assert metrics["forward"].startswith("forest (" if kind == "mistral" else f"padded ({kind}")
    assert KINDS[kind] in metrics["forward"]
    assert metrics["decoding"].startswith(("slots (", "transformers' own cache ("))


@pytest.mark.parametrize("kind", KINDS)
def test_preference_begins_at_the_loss_of_equal_models(kind, tmp_path):
    stage = Preference(kind="preference", model="m", data="d", per_device_train_batch_size=4, **OPTIMISER)
    context = context_of(kind, tmp_path, "data", "preference_pairs", pairs())
    metrics = preference.run(stage, context).metrics
    curve = [json.loads(line) for line in (context.folder / "metrics.jsonl").read_text().splitlines()]
    assert curve[0]["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert KINDS[kind] in metrics["forward"]


def test_reward_model_over_a_sliding_window(tmp_path):
    stage = RewardModel(kind="reward_model", model="m", data="d", per_device_train_batch_size=4, **OPTIMISER)
    context = context_of("mistral", tmp_path, "data", "preference_pairs", pairs())
    assert KINDS["mistral"] in reward_model.run(stage, context).metrics["forward"]
