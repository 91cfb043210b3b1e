"""Curated episodes in an rl stage: stored successes, completions by difficulty, uncertain turns, workers one by one."""

import importlib.util
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from learning.parallel.actors import Threads
from schemas.stages.rl import Rl
from tasks.context import Context
from tasks.rl import run

SPEC = importlib.util.spec_from_file_location("episode_world", Path(__file__).with_name("episode_world.py"))
world = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(world)
Environment, short = world.Environment, world.short
CURATED = {
    "prompt_sampler": {"use": "by_difficulty", "least": 2, "spare_turns": 0},
    "extra_samples": ["successes"],
    "token_mask": [{"use": "high_entropy_turns", "keep": 0.6}],
}


def lucky(samples):
    """1 for an episode whose tokens add up to a multiple of 3: a success that hangs on what was sampled."""
    return [float(sum(sample.completion_ids) % 3 == 0) for sample in samples]


def stage(**more):
    base = {
        "kind": "rl",
        "model": "m",
        "prompts": "p",
        "rewards": [f"{__name__}:lucky"],
        "env": {"use": f"{__name__}:Environment", "max_turns": 4},
        "generation_batch_size": 12,
        "num_generations": 3,
        "max_completion_length": 40,
        "max_steps": 8,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "logits_processors": [f"{__name__}:short"],
    }
    preset = {
        "advantage": ["center", {"use": "scale", "epsilon": 1e-4}],
        "ratio": "decoupled",
        "importance_correction": [{"use": "token", "high": 2.0}],
        "policy_loss": "clipped",
        "loss_aggregation": "token_mean",
    }
    return Rl.model_validate({**base, **preset, **CURATED, **more})


def rows(context):
    return pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()


def test_what_it_remembers_of_problems_is_in_its_checkpoints(same_when_interrupted):
    drive = {"use": "streamed", "max_staleness": 2, "steps_per_update": 5}
    lines = same_when_interrupted(run, stage(rollout=drive, max_steps=5), (3,))
    assert len(lines) == 5


def test_plans_and_stored_successes_change_what_is_trained_on(at):
    context = replace(at("curated"), seed=1)
    run(stage(), context)
    records = rows(context)
    sizes = Counter((row["step"], row["group"]) for row in records)
    assert {2, 3} <= set(sizes.values())
    replayed = [row for row in records if row["source"] == "replay"]
    assert replayed
    for row in replayed:
        of_group = [r for r in records if (r["step"], r["group"]) == (row["step"], row["group"])]
        assert [r["reward"] for r in of_group] == [0.0] * (len(of_group) - 1) + [1.0]
        before = [r for r in records if r["prompt_id"] == row["prompt_id"] and r["step"] < row["step"]]
        assert row["token_ids"] in [r["token_ids"] for r in before if r["reward"] == 1.0]
    # An episode is as long as the longest success of its problem so far, and no longer.
    assert max(len(row["turns"]) for row in records) <= 3


def test_workers_that_take_weights_one_by_one_train_every_group_once_across_a_kill(inputs, tmp_path, training):
    drive = {"use": "streamed", "max_staleness": 2, "sync": "each"}
    # The killed try comes two iterations further than its checkpoint.
    wanted = stage(rollout=drive, prompt_sampler="uniform", extra_samples=[], save_steps=3)
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    for attempt, step in enumerate((5, None)):
        folder = tmp_path / f"try-{attempt}"
        folder.mkdir()
        on_progress = (lambda event: None) if step is None else training.stop_at(step)
        with Actors() as actors:
            context = Context(inputs, folder, checkpoints, seed=3, on_progress=on_progress, actors=actors)
            if step is None:
                run(wanted, context)
            else:
                with pytest.raises(training.Stopped):
                    run(wanted, context)
    records = rows(context)
    assert len(records) == 8 * 12
    visits = Counter(row["prompt_id"] for row in records)
    # Epochs of five problems laid end to end, 32 groups of three.
    assert sorted(visits.values()) == [18, 18, 18, 21, 21]
    assert max(row["step"] - row["version"] for row in records) <= 2
    assert all(line.get("staleness_max", 0.0) <= 2 for line in training.curve(context))


class Actors:
    """Two rollout workers, for a while."""

    def __enter__(self):
        self.made = Threads({"rollout": 2})
        return self.made

    def __exit__(self, *_):
        self.made.close()
