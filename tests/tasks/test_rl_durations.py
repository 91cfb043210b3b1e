"""An rl stage whose environment has a clock of its own: what takes long comes late, to the same bits in every run."""

import pyarrow.parquet as pq
import pytest

from learning.environments.protocol import Outcome
from schemas.errors import StepError
from schemas.stages.rl import Rl
from tasks.rl import run


class Environment:
    """Two turns; a turn takes and earns what its text says."""

    def begin(self, row, seed):
        return Played()


class Played:
    def __init__(self):
        self.turns = 0

    def step(self, action):
        self.turns += 1
        seconds = 20.0 if sum(map(ord, action)) % 2 else 1.0
        return Outcome("b", self.turns == 2, seconds / 20, seconds, ok=len(action) > 2)


def short(logits_BV, place_B):
    """Turns end soon."""
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = logits_BV.logsumexp(-1) - 1.0
    return logits_BV


def stage(**more):
    env = {"use": f"{__name__}:Environment", "decode_seconds": more.pop("decode_seconds", 0.1), "workers": 64}
    base = {
        "kind": "rl",
        "model": "m",
        "prompts": "p",
        "rewards": ["environment.earned"],
        "env": env,
        "rollout": {"use": "streamed", "max_staleness": 4, "ahead": 2, "steps_per_update": 5},
        "advantage": ["by_turn"],
        "advantage_shaping": [{"use": "duration", "unit": 20}],
        "ratio": "decoupled",
        "importance_correction": ["token"],
        "policy_loss": "clipped",
        "loss_aggregation": "token_mean",
        "logits_processors": [f"{__name__}:short"],
        "generation_batch_size": 8,
        "num_generations": 1,
        "max_completion_length": 40,
        "max_steps": 6,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-2,
    }
    return Rl.model_validate({**base, **more})


def taken(context):
    """Seconds of each turn, by iteration."""
    rows = pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()
    durations = {}
    for row in rows:
        durations.setdefault(row["step"], []).append([turn["seconds"] for turn in row["turns"]])
    return durations


def test_a_killed_stage_resumes_bit_identical(same_when_interrupted):
    same_when_interrupted(run, stage(), (3, 5))


def test_what_is_quick_is_trained_on_first_and_what_is_slow_in_the_end_as_surely(at):
    quick, slow = at("timed"), at("alike")
    run(stage(), quick)
    by_step = taken(quick)
    mean = {step: sum(map(sum, seconds)) / len(seconds) for step, seconds in by_step.items()}
    assert mean[0] < sum(mean.values()) / len(mean)
    assert [len(by_step[step]) for step in range(6)] == [8] * 6
    assert {s for seconds in by_step.values() for turns in seconds for s in turns} == {1.0, 20.0}
    run(stage(decode_seconds=100.0), slow)
    assert taken(slow)[0] != by_step[0], "where decoding takes long, answers are there before the next token"


def test_a_drive_in_real_time_is_refused(at):
    drive = {"use": "streamed", "max_staleness": 1}
    with pytest.raises(StepError, match="decode_seconds counts decode steps"):
        run(stage(rollout=drive), at("real"))
