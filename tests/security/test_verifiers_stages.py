"""Samples that no verifier can score go through every kind of stage that scores: counted, and never an end."""

import json

import pyarrow.parquet as pq
import pytest

from learning.data.rows import write_rows
from schemas.errors import StepError
from schemas.gates import Gate
from schemas.stages.evaluate import Evaluate
from schemas.stages.rl import Rl
from schemas.stages.synthesize import Synthesize
from tasks import evaluate, rl, synthesize
from tasks.context import Context
from tests.security.gym_rows import made

FAMILY = "prime_factorization"
"""Its verifier raises for whatever is not made of whole numbers."""


@pytest.fixture
def prompts(tmp_path):
    """Problems of a family that is mostly unscorable and of one that never is, short enough for a tiny model."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    rows = [made()[family]["row"] for family in (FAMILY, "countdown")]
    write_rows(folder, "prompts", [row | {"prompt": [{"role": "user", "content": row["family"][:5]}]} for row in rows])
    return folder


def context(tmp_path, name, **inputs):
    here = tmp_path / name
    (here / "checkpoints").mkdir(parents=True)
    return Context(inputs, here, here / "checkpoints", seed=5)


def test_rl_leaves_out_what_cannot_be_scored(tmp_path, prompts, tiny_policy_folder):
    stage = Rl.model_validate(
        {
            "kind": "rl",
            "advantage": ["center"],
            "ratio": "token",
            "policy_loss": "clipped",
            "loss_aggregation": "sequence_mean",
            "model": "m",
            "prompts": "p",
            "rewards": ["answers.scored"],
            "generation_batch_size": 16,
            "num_generations": 4,
            "max_completion_length": 8,
            "max_steps": 3,
            "save_steps": 5,
            "logging_steps": 1,
            "learning_rate": 1e-3,
            "log_trajectories": 1.0,
        }
    )
    made_here = context(tmp_path, "rl", model=tiny_policy_folder, prompts=prompts)
    rl.run(stage, made_here)
    points = [json.loads(line) for line in (made_here.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(points) == 3
    assert all(0 < point["unscorable"] < 1 for point in points)
    kept = pq.read_table(next((made_here.folder / "outputs/trajectories").glob("*.parquet"))).to_pylist()
    assert {line["status"] for line in kept} >= {"unscorable"}


def test_evaluation_and_gates_count_what_cannot_be_scored(tmp_path, prompts, tiny_policy_folder):
    stage = Evaluate(
        kind="evaluate", models={"one": "a"}, max_completion_length=6, num_bootstrap=100, prompts="p",
        rewards=["answers.scored"], num_generations=4, temperature=1.0,
        gate=[Gate(metric="accuracy", model="one", min=0.0)],
    )  # fmt: skip
    result = evaluate.run(stage, context(tmp_path, "e", **{"models.one": tiny_policy_folder, "prompts": prompts}))
    assert 0 < result.metrics["unscorable"] < 8
    assert 0 <= result.metrics["accuracy"] < 0.2
    samples = pq.read_table(tmp_path / "e/outputs/report/samples.parquet").to_pylist()
    assert {s["score"] for s in samples} >= {None}


def test_synthesis_accepts_nothing_that_cannot_be_scored(tmp_path, prompts, tiny_policy_folder):
    stage = Synthesize(
        kind="synthesize", model="m", num_generations=4, max_completion_length=6, prompts="p", min_reward=0.0,
        rewards=["answers.scored"],
    )  # fmt: skip
    with pytest.raises(StepError, match="none of 8 samples was accepted"):
        synthesize.run(stage, context(tmp_path, "s", model=tiny_policy_folder, prompts=prompts))
