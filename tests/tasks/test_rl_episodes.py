"""An rl stage in an environment: every drive, killed and taken up again, and what curves and tables tell of it."""

import pyarrow.parquet as pq
import pytest

from learning.environments.protocol import Outcome
from learning.texts.rows import write_rows
from schemas.stages.rl import Rl
from tasks.rl import run

ALGORITHM = {"advantage": ["center", "scale"], "ratio": "token", "surrogate": "clipped", "weigh": "sequence_mean"}
PROMPTS = ["ab", "abc", "b", "cab", "ba"]


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    rows = [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in PROMPTS]
    write_rows(folder, "prompts", rows)
    return {"model": tiny_policy_folder, "prompts": folder}


class Played:
    """Three turns at most; what is said depends on the seed, the turn and the action."""

    def __init__(self, seed):
        self.seed, self.said = seed, []

    def step(self, action):
        self.said.append(action)
        place = sum(map(len, self.said)) + self.seed % 5
        done = len(self.said) == 3 or place % 7 == 0
        return Outcome("ab"[place % 2] * (1 + place % 3), done, -len(action) / 8, ok=bool(place % 4))


class Environment:
    """Functions of a seed and turns."""

    def begin(self, row, seed):
        return Played(seed)


def stage(**more):
    base = {
        "kind": "rl",
        "model": "m",
        "prompts": "p",
        "rewards": ["environment.earned"],
        "env": {"use": f"{__name__}:Environment", "max_turns": 4},
        "generation_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 40,
        "max_steps": 6,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "process": [f"{__name__}:short"],
    }
    return Rl.model_validate({**base, **ALGORITHM, **more})


def short(logits_BV, place_B):
    """Turns end soon."""
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = logits_BV.logsumexp(-1) - 1.0
    return logits_BV


DRIVES = {
    "whole": {},
    "together": {"env": {"use": f"{__name__}:Environment", "max_turns": 4, "order": "together"}},
    "windowed": {"drive": {"use": "windowed", "window": 7, "max_windows": 6}},
    "overprovisioned": {"drive": {"use": "overprovisioned", "target": 8}},
    "streamed": {"drive": {"use": "streamed", "max_staleness": 2, "steps_per_update": 5}},
    "one_step_off": {"drive": "one_step_off"},
    "periodic": {"drive": "periodic"},
}


@pytest.mark.parametrize("drive", DRIVES)
def test_a_stage_that_was_killed_in_the_middle_of_episodes_goes_on_to_the_same_bits(same_when_interrupted, drive):
    lines = same_when_interrupted(run, stage(**DRIVES[drive]), (3, 5))
    assert any(line["turns"] > 1.2 for line in lines if "turns" in line)
    assert any(line["failed_turns"] > 0 for line in lines if "turns" in line)


def rows(context):
    return pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()


def test_the_table_keeps_the_turns(at, inputs):
    from learning.models.policy import load_policy
    from learning.texts.chat import decode

    context = at("table")
    result = run(stage(max_steps=2), context)
    tokenizer, found = load_policy(inputs["model"]).tokenizer, rows(context)
    several = 0
    for row in found:
        at_, texts = 0, []
        for turn in row["turns"]:
            said, seen = at_ + turn["sampled"], at_ + turn["sampled"] + turn["observed"]
            assert turn["text"] == decode(tokenizer, row["token_ids"][at_:said])
            assert turn["observation"] == decode(tokenizer, row["token_ids"][said:seen])
            assert row["logprobs"][said:seen] == [0.0] * turn["observed"]
            assert turn["seconds"] is None
            texts += [turn["text"], turn["observation"]]
            at_ = seen
        assert row["completion"] == "".join(texts) + decode(tokenizer, row["token_ids"][at_:])
        assert row["scores"] == [("environment.earned", sum(-len(turn["text"]) / 8 for turn in row["turns"]))]
        several += len(row["turns"]) > 1
    assert several > 8
    sampled = sum(len(row["token_ids"]) - sum(turn["observed"] for turn in row["turns"]) for row in found)
    assert result.metrics["sampled_tokens"] == result.metrics["tokens"] == sampled
