"""A completion that makes a reward raise costs that completion its score; a reward that always raises ends the step."""

import math

import numpy as np
import pytest

from learning.evaluation.sampled_answers import compute_weighted_scores
from learning.lookup import bind
from learning.rl.monitoring import describe_samples
from learning.samples.sample import Sample
from learning.sampling.sampler import score
from schemas.errors import StepError
from schemas.use import RewardUse

CALLS = []


def numbers(completions):
    """What a text says, read without care."""
    CALLS.append(list(completions))
    return [float(text) for text in completions]


def beats(completions, groups):
    """Whether a number is the largest of its group."""
    CALLS.append(list(completions))
    values = [float(text) for text in completions]
    best = {g: max(v for v, of in zip(values, groups, strict=True) if of == g) for g in groups}
    return [float(v == best[g]) for v, g in zip(values, groups, strict=True)]


def counted(completions, state):
    """Remembers how many texts it has read, and raises after it has noted it."""
    state["read"] = state.get("read", 0) + len(completions)
    return [float(text) for text in completions]


def crowded(completions):
    """Raises for more than one completion."""
    if len(completions) > 1:
        raise MemoryError("too many")
    return [1.0]


def odd(completions):
    """Returns all kinds of things."""
    kinds = {"inf": math.inf, "nan": math.nan, "none": None, "true": True, "huge": 10**5000, "text": "0.5", "list": [1]}
    return [kinds.get(t, 0.5) for t in completions]


def short(completions):
    """Forgets the last completion."""
    return [1.0] * (len(completions) - 1)


def mute(completions):
    """Forgets to return."""


def recursive(completions):
    """Descends into brackets."""

    def depth(text):
        return 1 + depth(text[1:]) if text.startswith("[") else 0

    return [float(depth(text)) for text in completions]


def leaving(completions):
    """Evaluates what it should not."""
    return [float(exit() if text == "exit()" else 1) for text in completions]


def wrong(completions):
    """Has a slip of the pen."""
    return [float(len(text)) / missing for text in completions]  # noqa: F821


def picky(rows, completions):
    """Says itself what is wrong."""
    raise StepError("row 7: no answer")


def bound(name, **options):
    return bind(RewardUse.model_validate({"use": f"{__name__}:{name}", **options}), "rewards.0")


def samples(texts):
    rows = [{"id": str(i // 2), "prompt": [{"role": "user", "content": "?"}]} for i in range(len(texts))]
    return [
        Sample(row, int(row["id"]), "policy", [5], [6], [-1.0], "stop", text)
        for row, text in zip(rows, texts, strict=True)
    ]


def scored(name, texts, states=None, shown=None):
    made = samples(texts)
    supplies = {"step": 0, "seed": 3, "states": {} if states is None else states}
    score([bound(name)], [1.0], made, supplies, shown=shown)
    return made


@pytest.fixture(autouse=True)
def forget():
    CALLS.clear()


def test_completions_that_raise_cannot_be_scored_and_the_others_are(capsys):
    made = scored("numbers", ["1", "x", "2", "3e0"])
    assert [t.reward for t in made] == [1.0, None, 2.0, 3.0]
    assert CALLS == [["1", "x", "2", "3e0"], ["1"], ["x"], ["2"], ["3e0"], ["1", "2", "3e0"]]
    output = capsys.readouterr().err
    assert "1 of 4 completions cannot be scored: ValueError: could not convert string to float: 'x'" in output
    assert "(test_scoring.py:22), for the" in output
    assert "the completion 'x' of row '0'" in output
    assert "Traceback" in output


def test_a_call_without_an_exception_is_one_call():
    scored("numbers", ["1", "2"])
    assert CALLS == [["1", "2"]]


def test_unscorable_completions_are_counted_in_the_curve():
    made = scored("numbers", ["1", "x", "2", "y"])
    from learning.batch.batch_layout import forest

    points = describe_samples(made, forest([t for t in made if t.reward is not None]))
    assert (points["unscorable"], points["reward"]) == (0.5, 1.5)


def test_a_reward_that_sees_the_group_is_asked_about_the_others_together():
    made = scored("beats", ["1", "2", "x", "4", "7", "5"])
    assert [t.reward for t in made] == [0.0, 1.0, None, 1.0, 1.0, 0.0]
    assert CALLS[-1] == ["1", "2", "4", "7", "5"]


def test_a_memory_notes_what_was_scored_and_nothing_else():
    states = {"rewards.0": {"read": 10}, "other": {"kept": 1}}
    made = scored("counted", ["1", "x", "2"], states)
    assert [t.reward for t in made] == [1.0, None, 2.0]
    assert states == {"rewards.0": {"read": 12}, "other": {"kept": 1}}


@pytest.mark.parametrize(
    ("name", "texts", "rewards"),
    [
        ("recursive", ["[[", "[" * 5000, ""], [2.0, None, 0.0]),
        ("leaving", ["1", "exit()"], [1.0, None]),
        ("odd", ["none", "true", "x"], [None, 1.0, 0.5]),
        ("numbers", ["x"], [None]),
    ],
)
def test_whatever_is_raised_is_no_score(name, texts, rewards):
    assert [t.reward for t in scored(name, texts)] == rewards


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("inf", "inf (float)"),
        ("nan", "nan (float)"),
        ("huge", "a number beyond all limits (int)"),
        ("text", "'0.5' (str)"),
        ("list", "[1] (list)"),
    ],
)
def test_a_score_that_is_no_finite_number_ends_the_step_with_the_reward_the_row_and_the_value(value, shown):
    with pytest.raises(StepError) as e:
        scored("odd", ["x", "none", value])
    assert f"test_scoring:odd: its score is {shown}, for the completion '{value}' of row '1'; return" in str(e.value)
    with pytest.raises(StepError, match=r"its score is .* of row '7'"):
        compute_weighted_scores([bound("odd")], [1.0], [{"id": "7"}], [value])


def test_another_number_of_scores_ends_the_step():
    with pytest.raises(StepError, match=r"test_scoring:short: 1 scores for 2 completions; return one per completion"):
        scored("short", ["a", "b"])
    with pytest.raises(StepError, match=r"mute: it returns None \(NoneType\) instead of a score per completion"):
        scored("mute", ["a", "b"])


def test_a_reward_that_always_raises_ends_the_step_with_its_name_the_error_and_a_completion():
    with pytest.raises(
        StepError, match=r"test_scoring:wrong: it raises for every one of 3 completions.*NameError"
    ) as e:
        scored("wrong", ["a" * 500, "b", "c"])
    assert f"for the completion '{'a' * 80}...' of row '0'" in str(e.value)
    with pytest.raises(StepError, match=r"crowded: it raises for every one of 2.*MemoryError: too many"):
        scored("crowded", ["a", "b"])
    with pytest.raises(StepError, match=r"^row 7: no answer$"):
        scored("picky", ["a", "b"])


def test_the_first_failure_alone_is_shown(capsys):
    shown = {}
    for _ in range(3):
        scored("numbers", ["1", "x"], shown=shown)
    assert capsys.readouterr().err.count("cannot be scored") == 1


def test_samples_of_an_evaluation_are_scored_alike(capsys):
    rows, texts, shown = [{"id": "0"}] * 3, ["4", "x", "5"], {}
    for _ in range(2):
        assert compute_weighted_scores([bound("numbers")], [2.0], rows, texts, shown=shown) == [8.0, None, 10.0]
    assert capsys.readouterr().err.count("cannot be scored") == 1
    with pytest.raises(StepError, match="it raises for every one of 3 completions"):
        compute_weighted_scores([bound("wrong")], [1.0], rows, texts)


def test_what_an_inner_reward_raises_is_the_outer_ones():
    gated = bind(
        RewardUse.model_validate(
            {"use": "composite.gated", "of": {"use": f"{__name__}:numbers"}, "by": {"use": f"{__name__}:odd"}}
        ),
        "rewards.0",
    )
    assert compute_weighted_scores([gated], [1.0], [{"id": "0"}] * 2, ["true", "0.5"]) == [None, 0.0]


def of_table(completions, samples, *, column):
    """One column of a table of scores; a text holds its row, with `-` where there is none."""
    return [None if (cell := text.split()[column]) == "-" else float(cell) for text in completions]


@pytest.mark.parametrize("optional", [True, False])
def test_optional_rewards_follow_the_rule_of_trl(optional):
    """TRL 1.16: `nansum` of the weighted scores, and no reward at all where every function gives None."""
    rng = np.random.default_rng(3)
    score_NK = np.where(rng.random((40, 3)) < 0.5, np.nan, rng.integers(-3, 4, (40, 3)))
    score_NK[:8] = np.where(np.arange(8)[:, None] >> np.arange(3) & 1, 1.0, np.nan)  # each pattern of gaps
    texts = [" ".join("-" if np.isnan(s) else str(s) for s in row) for row in score_NK]
    weights = [1.0, 0.5, 2.0]
    gaps_N = np.isnan(score_NK).all(1) if optional else np.isnan(score_NK).any(1)
    expected = np.where(gaps_N, np.nan, np.nansum(score_NK * weights, axis=1))
    uses = [{"use": f"{__name__}:of_table", "column": k, "optional": optional} for k in range(3)]
    rewards = [bind(RewardUse.model_validate(use), f"rewards.{k}") for k, use in enumerate(uses)]
    samples = [Sample({"id": "q"}, 0, "policy", [1], [2], [-0.5], "stop", text) for text in texts]
    score(rewards, weights, samples, {"step": 0, "seed": 0, "states": {}})
    of_samples = [math.nan if sample.reward is None else sample.reward for sample in samples]
    np.testing.assert_allclose(of_samples, expected, atol=0)
    score(rewards, weights, samples, {"step": 0, "seed": 0, "states": {}}, read={rewards[0].name})
    assert all(sample.reward is None for sample, row in zip(samples, score_NK, strict=True) if np.isnan(row[0]))
    of = {"use": "composite.weighted", "of": [use | {"weight": w} for use, w in zip(uses, weights, strict=True)]}
    inner = bind(RewardUse.model_validate(of), "rewards.0")
    samples = [Sample({"id": "q"}, 0, "policy", [1], [2], [-0.5], "stop", text) for text in texts]
    score([inner], [1.0], samples, {"step": 0, "seed": 0, "states": {}})
    np.testing.assert_allclose([math.nan if s.reward is None else s.reward for s in samples], expected, atol=0)


def by_words(completions, *, column):
    """The same for an evaluation."""
    return of_table(completions, [], column=column)


def test_optional_rewards_of_an_evaluation_follow_it_too():
    uses = [{"use": f"{__name__}:by_words", "column": k, "optional": True} for k in range(2)]
    rewards = [bind(RewardUse.model_validate(use), f"rewards.{k}") for k, use in enumerate(uses)]
    rows, texts = [{"id": "0"}] * 4, ["1 2", "1 -", "- 2", "- -"]
    assert compute_weighted_scores(rewards, [1.0, 0.5], rows, texts) == [2.0, 1.0, 1.0, None]
    assert compute_weighted_scores([bound("odd")], [0.0], rows[:2], ["none", "x"]) == [0.0, 0.0]
