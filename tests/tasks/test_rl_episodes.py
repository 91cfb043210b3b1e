"""An rl stage in an environment: every drive, killed and taken up again, and what curves and tables tell of it."""

import importlib.util
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from learning.data.chat import decode
from learning.models.policy import load_policy
from learning.parallel.actors import Threads
from tasks.context import Context
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

SPEC = importlib.util.spec_from_file_location("episode_world", Path(__file__).with_name("episode_world.py"))
world = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(world)
Environment, short = world.Environment, world.short
ALGORITHM = {
    "advantage": ["center", "scale"],
    "ratio": "token",
    "policy_loss": "clipped",
    "loss_aggregation": "sequence_mean",
}


def stage(**more):
    return make_rl_stage(
        **{
            "rewards": ["environment.earned"],
            "env": {"use": f"{__name__}:Environment", "max_turns": 4},
            "max_completion_length": 40,
            "logits_processors": [f"{__name__}:short"],
            **ALGORITHM,
            **more,
        }
    )


MEMORY = {
    "use": f"{__name__}:Environment",
    "max_turns": 4,
    "context": {"use": "memory", "ask": "{question}{memory}{observation}", "text": "{question}{memory}"},
}
ROLLOUTS = {
    "synchronous": {},
    "together": {"env": {"use": f"{__name__}:Environment", "max_turns": 4, "order": "together"}},
    "memory": {"env": MEMORY},
    "memory, windowed": {"env": MEMORY, "rollout": {"use": "windowed", "window": 7, "max_windows": 9}},
    "memory, streamed": {"env": MEMORY, "rollout": {"use": "streamed", "max_staleness": 2, "steps_per_update": 5}},
    "windowed": {"rollout": {"use": "windowed", "window": 7, "max_windows": 6}},
    "overprovisioned": {"rollout": {"use": "overprovisioned", "target": 8}},
    "streamed": {"rollout": {"use": "streamed", "max_staleness": 2, "steps_per_update": 5}},
    "one_step_off": {"rollout": "one_step_off"},
    "periodic": {"rollout": "periodic"},
}


@pytest.mark.parametrize("drive", ROLLOUTS)
def test_a_stage_killed_during_episodes_resumes_bit_identical(same_when_interrupted, drive):
    lines = same_when_interrupted(run, stage(**ROLLOUTS[drive]), (3, 5))
    assert any(line["turns"] > 1.2 for line in lines if "turns" in line)
    assert any(line["failed_turns"] > 0 for line in lines if "turns" in line)


def rows(context):
    return pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()


@pytest.mark.parametrize("drive", ["synchronous", "streamed"])
def test_engines_in_workers_play_the_same_episodes(inputs, tmp_path, drive):
    results = {}
    for name, actors in (("here", None), ("apart", Threads({"rollout": 2}))):
        folder, checkpoints = tmp_path / name, tmp_path / f"{name}-checkpoints"
        folder.mkdir()
        checkpoints.mkdir()
        # Nothing is learnt, so that what is sampled does not hang on rounding or on real time.
        more = {} if drive == "synchronous" else {"rollout": {"use": "streamed", "max_staleness": 1}}
        context = Context(inputs, folder, checkpoints, seed=3, actors=actors)
        run(stage(learning_rate=1e-12, max_steps=3, **more), context)
        results[name] = sorted(
            (row["prompt_id"], row["token_ids"], [turn["observation"] for turn in row["turns"]])
            for row in rows(context)
        )
    assert results["here"] == results["apart"]
    assert sum(len(turns) > 1 for _, _, turns in results["here"]) > 8


def test_the_table_marks_new_contexts_and_memories(at):
    context = at("memory")
    run(stage(max_steps=1, env=MEMORY), context)
    turns = [turn for row in rows(context) for turn in row["turns"]]
    assert sum(turn["asks"] == "memory" for turn in turns) > 8
    assert all(turn["rebuilt"] == (turn["observed"] > 0) for turn in turns)
    assert all(turn["reward"] == 0 for turn in turns if turn["text"] and turn["asks"] == "action" and turn["rebuilt"])


def test_the_table_keeps_the_turns(at, inputs):
    context = at("table")
    result = run(stage(max_steps=2), context)
    tokenizer, records = load_policy(inputs["model"]).tokenizer, rows(context)
    several = 0
    for row in records:
        at_, texts = 0, []
        for turn in row["turns"]:
            sampled_end, seen = at_ + turn["sampled"], at_ + turn["sampled"] + turn["observed"]
            assert turn["text"] == decode(tokenizer, row["token_ids"][at_:sampled_end])
            assert turn["observation"] == decode(tokenizer, row["token_ids"][sampled_end:seen])
            assert row["logprobs"][sampled_end:seen] == [0.0] * turn["observed"]
            assert turn["seconds"] is None
            texts += [turn["text"], turn["observation"]]
            at_ = seen
        assert row["completion"] == "".join(texts) + decode(tokenizer, row["token_ids"][at_:])
        assert row["scores"] == [("environment.earned", sum(-len(turn["text"]) / 8 for turn in row["turns"]))]
        several += len(row["turns"]) > 1
    assert several > 8
    sampled = sum(len(row["token_ids"]) - sum(turn["observed"] for turn in row["turns"]) for row in records)
    assert result.metrics["sampled_tokens"] == result.metrics["tokens"] == sampled
