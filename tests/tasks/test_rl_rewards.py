"""The RL loop with rewards that ask: other models, the policy itself, the group, histories."""

import json
import math

import pyarrow.parquet as pq
import pytest

from learning.data.rows import write_rows
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

MARKS = {"1": 1.0, "0": 0.0}
JUDGED = {"template": "rate {completion}", "words": MARKS, "high": 1.0}


def stage(**more):
    return make_rl_stage(**{"max_completion_length": 6, "max_steps": 4, **more})


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    kinds = {"sums": "3", "votes": None, "open": None, "riddles": None}
    rows = [
        {
            "id": f"{kind}{i}",
            "prompt": [{"role": "user", "content": f"{i} {kind}"}],
            "answer": answer,
            "family": kind,
            "metadata": json.dumps({}),
        }
        for i in range(2)
        for kind, answer in kinds.items()
    ]
    write_rows(folder, "prompts", rows)
    others = {f"rewards.0.families.open.of.{i}.judge": tiny_policy_folder for i in range(2)}
    crowd = {"rewards.0.families.votes.others.0": tiny_policy_folder}
    return {"model": tiny_policy_folder, "prompts": folder, **others, **crowd}


ROUTED = {
    "use": "composite.routed",
    "families": {
        "sums": {"use": "likelihood.answer", "joiner": " "},
        "votes": {"use": "consensus.crowd", "others": ["m"]},
        "open": {
            "use": "composite.weighted",
            "of": [{"use": "judges.model", "judge": "m", **JUDGED}, {"use": "judges.own", **JUDGED, "weight": 0.5}],
        },
    },
}


def test_rewards_that_ask_resume_to_the_same_bits(same_when_interrupted):
    points = same_when_interrupted(run, stage(rewards=[ROUTED], filter_groups="similar_history"), (1, 3))
    # Riddles have no reward: of an epoch (two iterations) a quarter says nothing, and is not taken for 0.
    unscorable = [p["unscorable"] for p in points]
    assert [a + b for a, b in zip(unscorable[::2], unscorable[1::2], strict=True)] == [0.5, 0.5]
    assert all(math.isfinite(p["reward"]) for p in points)


def test_the_random_streams_of_sampling_do_not_know_who_is_asked(at):
    """The first iteration samples the same completions whatever the rewards ask."""
    texts = []
    for name, rewards in (("asking", [ROUTED]), ("plain", [{"use": "formats.brevity", "soft": 0, "hard": 9}])):
        context = at(name)
        run(stage(rewards=rewards, max_steps=1), context)
        (file,) = (context.folder / "outputs" / "trajectories").glob("*.parquet")
        texts.append(pq.read_table(file, columns=["prompt_id", "completion"]).to_pylist())
    assert texts[0] == texts[1]


SEEN = []


def by_tokens(prompts, completions, completion_ids, trainer_state, **kwargs):
    """A reward with TRL's signature: the number of tokens of each completion."""
    SEEN.append((trainer_state.global_step, trainer_state.max_steps))
    return [float(len(ids)) for ids in completion_ids]


def test_a_reward_of_trl_gets_the_sampled_tokens_and_the_iteration(at, training):
    SEEN.clear()
    context = at("trl")
    use = {"use": "foreign.trl", "function": f"{__name__}:by_tokens"}
    run(stage(rewards=[use], max_steps=2), context)
    assert SEEN == [(0, 2), (1, 2)]
    points = training.curve(context)
    assert [point["reward"] for point in points] == [point["completion_length"] for point in points]
