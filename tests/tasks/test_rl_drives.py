"""The RL loop with completions that stretch over iterations, and with a distribution that is changed while sampling."""

from itertools import accumulate

import pyarrow.parquet as pq
import pytest

import tasks.rl
from learning.data.rows import write_rows
from learning.generation.engines.torch import Engine
from tasks.rl import run
from tests.tasks.rl_stages import PROMPTS, make_rl_stage

HERE = __name__


def stage(**more):
    return make_rl_stage(**{"rewards": [f"{HERE}:short"], **more})


def short(completions):
    """The shorter, the better."""
    return [-len(text) / 8 for text in completions]


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    rows = [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in PROMPTS]
    answers = {"chosen": [{"role": "assistant", "content": "xyz!"}], "rejected": [], "margin": 1.0}
    folders = {name: tmp_path / name for name in ("prompts", "pairs")}
    for folder in folders.values():
        folder.mkdir()
    write_rows(folders["prompts"], "prompts", rows)
    write_rows(folders["pairs"], "preference_pairs", [row | answers for row in rows])
    return {"model": tiny_policy_folder, "prompts": folders["prompts"], "rollout.data": folders["pairs"]}


def rows_of(context):
    return pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()


ROLLOUTS = {
    "wait": {"rollout": {"use": "windowed", "window": 3}},
    "all": {
        "rollout": {"use": "windowed", "window": 3, "partial": "all"},
        "advantage": [{"use": "gae", "lam": 0.9, "tail": "hold"}],
        "critic": {"learning_rate": 1e-2, "token_mask": ["finished"]},
        "token_mask": [{"use": "fresh", "max_age": 0}],
    },
    "more": {"rollout": {"use": "overprovisioned", "target": 8, "overprovision": 2.0}},
    "resets": {"rollout": {"use": "resets", "data": "d", "mix": 0.5}},
    "logits_processors": {
        "logits_processors": [
            {
                "use": "adaptive_temperature",
                "tau": 0.5,
                "low": {"controller": "low"},
                "pivot": {"controller": "pivot"},
                "high": {"controller": "high"},
            }
        ],
        "controllers": {
            "low": {"use": "log_entropy_quantile", "q": 0.0},
            "pivot": {"use": "log_entropy_quantile", "q": 0.5},
            "high": {"use": "log_entropy_quantile", "q": 1.0},
        },
    },
}


@pytest.fixture
def tokens_of_calls(monkeypatch):
    """Tokens that the engine gave in each iteration, filled in while a stage runs."""
    counts = []
    iterate = tasks.rl.run_iteration

    class Counting(Engine):
        def generate(self, requests, sampling):
            made = super().generate(requests, sampling)
            counts[-1] += sum(len(g.token_ids) for of in made for g in of)
            return made

    def counted(*arguments):
        counts.append(0)
        iterate(*arguments)

    monkeypatch.setattr(tasks.rl, "make_engine", lambda use, policy, *_, **places: Counting(policy))
    monkeypatch.setattr(tasks.rl, "run_iteration", counted)
    return counts


def halved(samples):
    """A follow-up: the second half is not trained on."""
    return samples[: len(samples) // 2], []


@pytest.mark.parametrize("parts", [*ROLLOUTS.values(), {"resample": [f"{HERE}:halved"]}], ids=[*ROLLOUTS, "halved"])
def test_every_token_counts_once_in_the_iteration_that_sampled_it(at, training, tokens_of_calls, parts):
    """Also of completions that have not ended, and of those that are dropped."""
    context = at("counted")
    result = run(stage(**parts), context)
    points = training.curve(context)
    assert [p["sampled_tokens"] for p in points] == list(accumulate(tokens_of_calls))
    assert result.metrics["tokens"] == sum(tokens_of_calls)


def test_a_limit_of_tokens_ends_a_stage_before_any_completion_has(at, tokens_of_calls):
    result = run(stage(rollout={"use": "windowed", "window": 2}, max_sampled_tokens=70), at("limited"))
    assert (len(tokens_of_calls), result.metrics["steps"]) == (3, 3)
    assert sum(tokens_of_calls[:2]) < 70 <= sum(tokens_of_calls) == result.metrics["tokens"]


@pytest.mark.parametrize("name", ROLLOUTS)
def test_trap_24_what_is_suspended_resumes_to_the_same_bits(same_when_interrupted, name):
    points = same_when_interrupted(run, stage(**ROLLOUTS[name]), (1, 3, 5))
    assert len(points) == 6


def test_iterations_without_an_ended_group_train_nothing_and_lose_nothing(at):
    context = at("wait")
    run(stage(rollout={"use": "windowed", "window": 3}), context)
    rows = rows_of(context)
    first = [r for r in rows if r["step"] == 0]
    late = [r for r in rows if r["step"] >= 2 and len(r["token_ids"]) == 8]
    assert len(first) < 16
    assert all(r["step"] - r["version"] == 2 for r in late)
    assert len(late) > 8
    assert all(len(r["logprobs"]) == len(r["token_ids"]) for r in rows)


def test_suspended_completions_are_marked_and_get_no_reward(at):
    context = at("all")
    run(stage(**ROLLOUTS["all"]), context)
    rows = rows_of(context)
    open_ = [r for r in rows if r["status"] == "suspended"]
    assert {len(r["token_ids"]) for r in open_} <= {3, 6}
    assert {r["reward"] for r in open_} == {0.0}
    assert all(r["trained"] for r in open_)
    assert all(r["reward"] == -len(r["completion"]) / 8 for r in rows if r["status"] != "suspended")


def test_resets_are_a_source_of_their_own(at):
    context = at("resets")
    run(stage(**ROLLOUTS["resets"]), context)
    rows = rows_of(context)
    sources = [r["source"] for r in rows]
    assert set(sources) == {"policy", "reset"}
    assert 30 < sources.count("reset") < 66
    for row in rows:
        if row["source"] == "reset":
            cut = len(row["completion"]) - len([t for t in row["token_ids"] if t >= 6])
            assert row["completion"].startswith("xyz!"[: max(cut, 0)])


def test_the_changed_distribution_is_the_one_that_is_noted(at):
    context = at("process")
    run(stage(**ROLLOUTS["logits_processors"], max_steps=3), context)
    plain = at("plain")
    run(stage(max_steps=3), plain)
    changed, same = rows_of(context), rows_of(plain)
    # In the first iteration no controller has spoken: both sample the same.
    assert [r["token_ids"] for r in changed if r["step"] == 0] == [r["token_ids"] for r in same if r["step"] == 0]
    assert [r["token_ids"] for r in changed if r["step"] == 1] != [r["token_ids"] for r in same if r["step"] == 1]
