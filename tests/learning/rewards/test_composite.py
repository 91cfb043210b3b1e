"""Rewards made of rewards, and rewards for length: by numbers, and what cannot be scored stays so."""

import math

import pytest

from learning.evaluation.sampled_answers import compute_weighted_scores
from learning.lookup import bind
from learning.samples.sample import Sample
from learning.sampling.sampler import score, scoring
from schemas.errors import StepError
from schemas.signatures import read_signature
from schemas.use import RewardUse

HERE = __name__
SEEN = []


def sample(text, group=0, answer="3", family="sums", tokens=None, **more):
    ids = list(range(tokens if tokens is not None else len(text)))
    row = {"id": f"q{group}", "prompt": [{"role": "user", "content": "1 + 2 ="}], "answer": answer, "family": family}
    return Sample(row, group, "policy", [1], ids, [-0.5] * len(ids), "stop", text, **more)


def ask(samples, step=0, **use):
    return bind(RewardUse.model_validate(use), "rewards.0").ask(step, {**scoring(samples), "seed": 0, "states": {}})


def seen(completions):
    """As many as there are, and which they were."""
    SEEN.append(list(completions))
    return [float(len(text)) for text in completions]


def odd(completions):
    """What is empty cannot be scored; what is `nan` neither."""
    return [None if not text else math.nan if text == "nan" else 1.0 for text in completions]


def counting(completions, state):
    """Has a memory of its own."""
    state["n"] = state.get("n", 0) + 1
    return [float(state["n"])] * len(completions)


def test_a_gate_opens_only_where_its_reward_is_met():
    SEEN.clear()
    got = ask([sample("3"), sample("44"), sample("3.")], use="composite.gated", by="answers.exact", of=f"{HERE}:seen")
    assert got == [1.0, 0.0, 2.0]
    assert SEEN == [["3", "3."]]
    nobody_knows = [sample("3", answer=None), sample("5")]
    assert ask(nobody_knows, use="composite.gated", by="answers.exact", of=f"{HERE}:odd", otherwise=-1) == [None, -1.0]
    assert ask([sample("nan"), sample("x")], use="composite.gated", by=f"{HERE}:seen", of=f"{HERE}:odd") == [None, 1.0]


def test_a_ladder_asks_only_who_climbs():
    SEEN.clear()
    use = {"use": "composite.tiered", "scores": [-1, 0, 1], "of": [{"use": "formats.matches", "pattern": r"\d+"}]}
    samples = [sample("three"), sample("4"), sample("3"), sample("3", answer=None)]
    assert ask(samples, **{**use, "of": [*use["of"], "answers.exact"]}) == [-1.0, 0.0, 1.0, None]
    assert ask(samples, **{**use, "of": [*use["of"], f"{HERE}:seen"], "at_least": 1.0}) == [-1.0, 1.0, 1.0, 1.0]
    assert SEEN == [["4", "3", "3"]]
    with pytest.raises(StepError, match="1 rewards need 2 `scores`, not 3"):
        ask(samples, **use)


def test_the_first_that_can_say_something_decides():
    SEEN.clear()
    samples = [sample("3"), sample("77", answer=None), sample("4")]
    assert ask(samples, use="composite.first", of=["answers.exact", f"{HERE}:seen"]) == [1.0, 2.0, 0.0]
    assert SEEN == [["77"]]
    assert ask([sample("")], use="composite.first", of=[f"{HERE}:odd"]) == [None]


def test_a_sum_inside_a_reward_follows_weights_and_schedules():
    fading = {"linear": {"from": 1.0, "to": 0.0, "steps": 4}}
    of = [{"use": "answers.exact", "weight": 2}, {"use": f"{HERE}:seen", "weight": fading}]
    samples = [sample("3"), sample("44")]
    assert ask(samples, step=0, use="composite.weighted", of=of) == [3.0, 2.0]
    assert ask(samples, step=2, use="composite.weighted", of=of) == [2.5, 1.0]
    of = [{"use": "answers.exact"}, {"use": f"{HERE}:odd", "weight": fading}]
    assert ask([sample(""), sample("3")], step=0, use="composite.weighted", of=of) == [None, 2.0]
    assert ask([sample(""), sample("3")], step=9, use="composite.weighted", of=of) == [0.0, 1.0]


def test_every_kind_of_problem_has_a_reward_of_its_own():
    SEEN.clear()
    samples = [sample("aaa", family="open"), sample("3"), sample("?", family="riddles"), sample("b", family="open")]
    use = {"use": "composite.routed", "families": {"sums": "answers.exact", "open": f"{HERE}:seen"}}
    assert ask(samples, **use) == [3.0, 1.0, None, 1.0]
    assert SEEN == [["aaa", "b"]]
    assert ask(samples, **use, otherwise=f"{HERE}:seen") == [3.0, 1.0, 1.0, 1.0]


def test_groups_and_memories_reach_the_inner_reward():
    samples = [sample(t, group=g) for g, t in ((0, "5"), (1, "7"), (0, "5"), (0, "6"), (1, "8"), (1, "8"))]
    use = {"use": "composite.routed", "families": {"sums": "consensus.majority"}}
    assert ask(samples, **use) == [1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    supplies = {**scoring(samples), "seed": 0, "states": {}}
    outer = bind(RewardUse.model_validate({"use": "composite.first", "of": [f"{HERE}:counting"]}), "rewards.0")
    assert [outer.ask(step, supplies)[0] for step in (0, 1)] == [1.0, 2.0]
    assert supplies["states"] == {"rewards.0.of.0": {"n": 2}}


def test_an_unscorable_sample_is_no_sample_of_reward_0():
    samples = [sample("3"), sample("", answer="3")]
    score(
        [bind(RewardUse.model_validate({"use": "composite.first", "of": [f"{HERE}:odd"]}))], [1.0], samples, {"step": 0}
    )
    assert [t.reward for t in samples] == [1.0, None]


def test_inner_rewards_are_checked_and_outside_the_loop_they_work_too():
    signature = read_signature(RewardUse, "composite.gated")
    assert signature.options["of"].required
    assert signature.options["of"].type is RewardUse
    use = RewardUse.model_validate({"use": "composite.first", "of": [{"use": "answers.exact", "markr": "x"}]})
    with pytest.raises(StepError, match="markr"):
        bind(use, "rewards.0")
    bound = bind(RewardUse.model_validate({"use": "composite.first", "of": ["answers.exact", f"{HERE}:seen"]}))
    rows = [sample("3").row, sample("3", answer=None).row]
    assert compute_weighted_scores([bound], [1.0], rows, ["3", "1234"]) == [1.0, 4.0]


def test_lengths_are_of_sampled_tokens_or_of_characters():
    samples = [sample("abcd", tokens=8), sample("ab", tokens=12, given=3), sample("", tokens=0)]
    assert ask(samples, use="lengths.target", length_wanted=8, per_unit=0.25) == [0.0, -0.25, -1.0]
    assert ask(samples, use="lengths.target", length_wanted=2, per_unit=0.25, unit="characters") == [-0.5, 0.0, -0.5]
    assert ask(samples, use="lengths.at_most", length_wanted=8, per_unit=0.1) == pytest.approx([0.5, 0.4, 1.0])
    assert ask(samples, use="lengths.tiered", tiers={0: 0.0, 8: -0.5, 9: -1.0}) == [-0.5, -1.0, 0.0]
    with pytest.raises(StepError, match="the lowest tier starts at 1"):
        ask(samples, use="lengths.tiered", tiers={1: 0.0})


def test_right_ones_lose_by_length_and_wrong_ones_gain():
    samples = [sample("3", tokens=n) for n in (0, 5, 10)] + [sample("4", tokens=n) for n in (0, 5)]
    samples += [sample("3", tokens=5, answer=None)]
    got = ask(samples, use="lengths.cosine", of="answers.exact", longest=10)
    assert got == pytest.approx([2.0, 1.5, -10.0, -10.0, -5.0, None])
    quarter = ask([sample("3", tokens=1)], use="lengths.cosine", of="answers.exact", longest=4)
    assert quarter == pytest.approx([1 + (1 + math.sqrt(0.5)) / 2])


def test_a_reward_may_look_inside_a_tag_alone():
    use = RewardUse.model_validate({"use": "composite.inside", "of": "answers.exact", "otherwise": -1.0})
    texts = ["<answer> 3 </answer>", "3", "<answer>4</answer> <answer>3</answer>.", "</answer><answer>3"]
    supplies = {"rows": [{"answer": "3"}] * 4, "completions": texts}
    assert bind(use).ask(0, supplies) == [1.0, -1.0, 1.0, -1.0]
    other = use.model_copy(update={"tag": "b", "otherwise": 0.0})
    assert bind(other).ask(0, {**supplies, "completions": ["<b>3</b>", *texts[:3]]}) == [1.0, 0.0, 0.0, 0.0]
    assert supplies["completions"] is texts
