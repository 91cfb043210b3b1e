"""The RL loop with drives that ask ahead: the same loop, the same files, and what is different is said."""

from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from learning.parallel.actors import Threads
from learning.rl.monitoring import TIMED
from schemas.errors import StepError
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

HERE = __name__


def stage(**more):
    return make_rl_stage(
        **{
            "rewards": [f"{HERE}:short"],
            "generation_batch_size": 12,
            "num_generations": 3,
            "ratio": "decoupled",
            "importance_correction": [{"use": "token", "high": 5.0}],
            **more,
        }
    )


def short(completions):
    """The shorter, the better; an answer with an e in it cannot be judged."""
    return [None if "e" in text else -len(text) / 8 for text in completions]


def breaks(completions):
    """A server that is not there."""
    raise StepError("judge: nobody answers at 127.0.0.1:9")


def rows_of(context):
    return pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()


def weights_of(context):
    return load_file(context.folder / "outputs" / "model" / "model.safetensors")


EXACT = {
    "one_step_off": {"use": "one_step_off"},
    "periodic": {"use": "periodic"},
    "paced": {"use": "streamed", "max_staleness": 2, "steps_per_update": 3},
    "slack": {"use": "streamed", "max_staleness": 3, "ahead": 1, "steps_per_update": 2},
}


@pytest.mark.parametrize("name", EXACT)
def test_trap_24_what_is_under_way_resumes_to_the_same_bits(same_when_interrupted, name):
    points = same_when_interrupted(run, stage(rollout=EXACT[name]), (1, 3, 5))
    assert len(points) == 6


def test_in_real_time_a_killed_stage_trains_on_every_group_once(at, training):
    asynchronous = stage(rollout={"use": "streamed", "max_staleness": 3})
    with pytest.raises(training.Stopped):
        run(asynchronous, at("real", 0, training.stop_at(3)))
    last = at("real", 1)
    run(asynchronous, last)
    plain = at("plain")
    run(stage(), plain)
    rows = rows_of(last)
    assert Counter(r["prompt_id"] for r in rows) == Counter(r["prompt_id"] for r in rows_of(plain))
    assert len(rows) == 72
    assert all(0 <= r["step"] - r["version"] <= 3 for r in rows)


def test_all_drives_sample_the_same_problems_with_the_same_numbers(at):
    """The first iteration's weights are those of all: its completions are the same, and so are all problems."""
    rows_by_mode = {}
    for name, drive in {"synchronous": "synchronous", **EXACT}.items():
        context = at(name)
        run(stage(rollout=drive, max_steps=3, learning_rate=1e-12), context)
        rows_by_mode[name] = Counter((r["prompt_id"], tuple(r["token_ids"])) for r in rows_of(context))
    assert all(counted == rows_by_mode["synchronous"] for counted in rows_by_mode.values())


def test_periodic_asynchrony_trains_as_the_synchronous_loop_does(at):
    contexts = {}
    for name, drive in {
        "sync": "synchronous",
        "asked": "periodic",
        "arrived": {"use": "periodic", "order": "arrived"},
    }.items():
        contexts[name] = at(name)
        # The first step of Adam is ±rate whatever the size of a gradient: rounding would show; later ones average.
        run(stage(rollout=drive, max_steps=3, ratio="token", importance_correction=[]), contexts[name])
    rows = {name: rows_of(context) for name, context in contexts.items()}
    for name in ("asked", "arrived"):
        assert [r["token_ids"] for r in rows[name] if r["step"] == 0] == [
            r["token_ids"] for r in rows["sync"] if r["step"] == 0
        ]
        assert [r["advantage"] for r in rows[name]] == pytest.approx(
            [r["advantage"] for r in rows["sync"]], abs=1e-6, nan_ok=True
        )
        assert all(r["version"] == r["step"] for r in rows[name])
        for key, value in weights_of(contexts["sync"]).items():
            torch.testing.assert_close(weights_of(contexts[name])[key], value, atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", EXACT)
def test_curves_say_how_old_tokens_are_and_who_waited(at, training, name):
    context = at(name)
    result = run(stage(rollout=EXACT[name]), context)
    points = training.curve(context)
    assert set(TIMED).isdisjoint(result.metrics)
    ages = [p.get("staleness_max", 0.0) for p in points]
    limit = {"one_step_off": 1, "periodic": 0, "paced": 2, "slack": 3}[name]
    assert max(ages) <= limit
    assert (max(ages) > 0) == (limit > 0)
    rows = rows_of(context)
    for step, point in enumerate(points):
        assert point.get("staleness_max", 0.0) == max(r["step"] - r["version"] for r in rows if r["step"] == step)
        assert (point.get("older_tokens", 0.0) > 0) == (point.get("staleness_max", 0.0) > 0)
    if name == "one_step_off":
        assert [p.get("staleness", 0.0) for p in points] == [0.0, *[1.0] * 5]
    # Every sampled token counts, however old it was when it was trained on.
    assert result.metrics["tokens"] == sum(len(r["token_ids"]) for r in rows)


def test_what_cannot_be_judged_is_unscorable_and_no_reward_of_zero(at):
    context = at("real")
    run(stage(rollout={"use": "streamed", "max_staleness": 2}), context)
    rows = rows_of(context)
    unknown = [r for r in rows if "e" in r["completion"]]
    assert unknown
    assert all(r["status"] == "unscorable" and r["reward"] is None and not r["trained"] for r in unknown)
    assert all(r["reward"] is not None for r in rows if "e" not in r["completion"])


def test_a_reward_that_breaks_ends_the_stage_with_its_own_words(at):
    with pytest.raises(StepError, match=r"nobody answers at 127\.0\.0\.1:9"):
        run(stage(rollout={"use": "streamed"}, rewards=[f"{HERE}:breaks"]), at("broken"))


@pytest.mark.parametrize("name", ["one_step_off", "real"])
def test_workers_of_the_role_rollout_sample_what_one_process_would(at, name):
    """Two services in threads of their own, given weights through files, the same requests and the same streams."""
    drive = {**EXACT, "real": {"use": "streamed", "max_staleness": 2}}[name]
    plain, apart = at("plain"), at("apart")
    run(stage(rollout=drive, max_steps=4), plain)
    actors = Threads({"rollout": 2})
    try:
        run(stage(rollout=drive, max_steps=4), replace(apart, actors=actors))
    finally:
        actors.close()
    here, there = rows_of(plain), rows_of(apart)
    assert Counter(r["prompt_id"] for r in there) == Counter(r["prompt_id"] for r in here)
    assert max(r["step"] - r["version"] for r in there) <= (2 if name == "real" else 1)
    if name == "one_step_off":
        first = [r["token_ids"] for r in here if r["step"] < 2]
        assert [r["token_ids"] for r in there if r["step"] < 2] == first
        assert [r["version"] for r in there] == [r["version"] for r in here]


@pytest.mark.parametrize("drive", ["one_step_off", {"use": "streamed", "max_staleness": 3}], ids=str)
def test_held_out_problems_are_looked_at_while_others_are_under_way(at, training, inputs, drive):
    inputs["eval_prompts"] = inputs["prompts"]
    looking = stage(rollout=drive, eval_prompts="p", eval_steps=2, max_steps=4)
    curves = []
    for name in ("one", "two"):
        context = at(name)
        run(looking, context)
        curves.append(training.curve(context))
        assert ["eval_reward" in point for point in curves[-1]] == [False, True, False, True]
        assert len(rows_of(context)) == 48
    if drive == "one_step_off":
        assert curves[0] == curves[1]
