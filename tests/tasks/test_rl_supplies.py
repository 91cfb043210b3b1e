"""Plans, follow-ups and sources with a memory, inside the loop: a killed stage goes on to the same bits."""

import pyarrow.parquet as pq
import pytest

from learning.data.rows import write_rows
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

HERE = __name__
PROMPTS = ["ab", "abc", "b", "cab", "ba", "bb", "ca", "cc"]


def even(rows, completions):
    """Right half of the time, as far as an untrained model goes: an even number of letters."""
    return [float(sum(c.isalpha() for c in text) % 2 == 0) for text in completions]


def rare(rows, completions):
    """Seldom right."""
    return [float(text[:1] in tuple("aeiouAEIOU")) for text in completions]


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    rows = [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in PROMPTS]
    folders = {"model": tiny_policy_folder}
    for name, artifact, more in (
        ("prompts", "prompts", {}),
        ("resample.0.data", "chat", {"completion": [{"role": "assistant", "content": "oh"}]}),
        ("extra_samples.0.data", "chat", {"completion": [{"role": "assistant", "content": "ah"}]}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        write_rows(folder, artifact, [row | more for row in rows])
        folders[name] = folder
    return folders


def stage(**more):
    return make_rl_stage(
        **{
            "rewards": [f"{HERE}:even"],
            "advantage": ["center"],
            "loss_terms": [],
            "generation_batch_size": 8,
            "num_generations": 2,
            "max_completion_length": 6,
            **more,
        }
    )


REFILLED = {
    "prompt_sampler": {"use": "adaptive_size", "most": 2},
    "resample": [{"use": "dynamic_sampling", "budget": 3}],
    "extra_samples": [{"use": "replay", "policies": 2, "groups": 2}],
    "filter_groups": "reward_variance",
}
RETRIED = {
    "prompt_sampler": {"use": "hard_focus", "share": {"linear": {"from": 1.0, "to": 0.5, "steps": 4}}},
    "rewards": [f"{HERE}:rare"],
    "resample": [
        {"use": "retry_with_exemplars", "extra": 1, "demos": 1, "data": "solved"},
        {"use": "allocate", "extra": 3},
    ],
    "extra_samples": [{"use": "expert", "data": "texts", "when": "failed"}, "successes"],
}
GUIDED = {
    "prompt_sampler": "with_greedy",
    "rewards": [f"{HERE}:rare"],
    "resample": [{"use": "hint", "data": "solved", "lead": "|"}],
    "advantage": [{"use": "center", "among": ["greedy"]}],
}


@pytest.mark.parametrize("parts", [REFILLED, RETRIED, GUIDED], ids=["refilled", "retried", "guided"])
def test_trap_24_what_plans_follow_ups_and_sources_remember_is_resumed(same_when_interrupted, parts):
    points = same_when_interrupted(run, stage(**parts), (1, 3, 5))
    assert len({p["completions"] for p in points}) > 1 or parts is GUIDED


def sources(context):
    table = pq.read_table(context.folder / "outputs" / "trajectories" / "trajectories.parquet")
    rows = table.select(["step", "source", "trained", "version", "advantage"]).to_pylist()
    return {source: [r for r in rows if r["source"] == source] for source in {r["source"] for r in rows}}


def test_every_source_is_recorded_and_replays_are_older_than_their_iteration(at):
    context = at("refilled")
    result = run(stage(**REFILLED), context)
    records = sources(context)
    assert set(records) == {"policy", "replay"}
    assert all(row["version"] < row["step"] for row in records["replay"])
    assert all(row["version"] == row["step"] for row in records["policy"])
    # What was replayed was not sampled now.
    assert result.metrics["sampled_tokens"] <= 6 * 6 * len(records["policy"])


def test_greedy_completions_are_counted_and_not_trained(at):
    context = at("guided")
    run(stage(**GUIDED), context)
    records = sources(context)
    assert len(records["greedy"]) <= 6 * 4
    assert {"greedy", "hinted"} < set(records)
    assert all(not row["advantage"] for row in records["greedy"])
