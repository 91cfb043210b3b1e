"""An evaluation by episodes: numbers follow from the turns, a killed one asks for the rest alone."""

import json

import pyarrow.parquet as pq
import pytest

from learning.samples.engine_protocol import Turn
from learning.samples.sample import transcript
from schemas.stages.evaluate import Evaluate
from tasks.context import Context
from tasks.evaluate import run

ENV = {"use": "guess", "higher": "+", "lower": "-", "unclear": "?", "max_turns": 3}


def stage(**more):
    base = {
        "kind": "evaluate",
        "model": "m",
        "tasks": [{"use": "guesses", "split": "test", "size": 8}],
        "env": ENV,
        "rewards": ["environment.earned"],
        "num_generations": 3,
        "temperature": 1.0,
        "max_completion_length": 40,
        "num_bootstrap": 100,
    }
    return Evaluate.model_validate({**base, **more})


def context(tmp_path, name, model, **how):
    here = tmp_path / name
    (here / "checkpoints").mkdir(parents=True, exist_ok=True)
    return Context({"model": model}, here, here / "checkpoints", seed=5, **how)


def samples(tmp_path, name):
    return pq.read_table(tmp_path / name / "outputs" / "report" / "samples.parquet").to_pylist()


def test_what_the_environment_says_is_in_samples_and_numbers(tmp_path, tiny_policy_folder):
    result = run(stage(), context(tmp_path, "a", tiny_policy_folder))
    rows = samples(tmp_path, "a")
    assert len(rows) == 24
    # A model of random weights says no numbers: every whole turn failed, and was answered but for the third.
    assert result.metrics["failed_turns.model"] == result.metrics["turns.model"] > 0
    assert result.metrics["accuracy"] == 0.0
    assert sum("\n→ ?\n" in one["completion"] for one in rows) > 0
    record = json.loads((tmp_path / "a/outputs/report/results.json").read_text())["episodes"]["model"]
    assert record["turns"] == result.metrics["turns.model"]


def test_an_episode_is_read_turn_by_turn():
    def text(ids):
        return "".join(map(chr, ids))

    ids = [ord(c) for c in "ask?told!go"]
    assert transcript(text, ids, [Turn(4, 5), Turn(1, 0)]) == "ask?\n→ told!\ng\no"
    assert transcript(text, ids, [Turn(4, 5), Turn(2, 0)]) == "ask?\n→ told!\ngo"
    assert transcript(text, ids[:9], [Turn(4, 5)]) == "ask?\n→ told!"


def test_an_evaluation_that_was_killed_is_the_one_that_was_not(tmp_path, tiny_policy_folder, monkeypatch):
    class Killed(Exception):
        pass

    def kill(event):
        if event.get("step", 0) > 2:
            raise Killed

    whole = run(stage(), context(tmp_path, "whole", tiny_policy_folder))
    with pytest.raises(Killed):
        run(stage(), context(tmp_path, "broken", tiny_policy_folder, on_progress=kill))
    again = run(stage(), context(tmp_path, "broken", tiny_policy_folder))
    assert samples(tmp_path, "broken") == samples(tmp_path, "whole")
    assert again.metrics == whole.metrics


def test_episodes_cut_in_their_first_turn_earn_nothing(tmp_path, tiny_policy_folder):
    cut = stage(max_completion_length=1, env={**ENV, "max_turns": 1})
    result = run(cut, context(tmp_path, "cut", tiny_policy_folder))
    assert result.metrics["turns.model"] == 0
    assert result.metrics["accuracy"] == 0.0


def test_episodes_that_end_at_a_limit_are_counted_with_both_limits(tmp_path, tiny_policy_folder):
    """Every episode has one turn, and the environment goes on."""
    short = stage(env={**ENV, "max_turns": 1})
    result = run(short, context(tmp_path, "short", tiny_policy_folder))
    (text,) = [notice for notice in result.notices if "were cut" in notice]
    limits = f"max_completion_length: {short.max_completion_length} or max_turns: 1"
    assert f"were cut at {limits}; they never reached their end" in text
