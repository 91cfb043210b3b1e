import json

import pytest

from learning.problems.generators import reasoning_gym
from learning.reasoning_gym.families import entry_of
from learning.rewards.answers import exact, scored
from schemas.errors import StepError

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def texts(rows):
    return {row["prompt"][0]["content"] for row in rows}


def test_sides_of_a_small_space_never_share_a_problem():
    sides = {"train": set(), "test": set()}
    for split, size in (("train", 120), ("test", 30)):
        for seed in range(4):
            rows = reasoning_gym(family="chain_sum", size=size, split=split, seed=seed, style="short", config=ONE_DIGIT)
            assert len(texts(rows)) == len({row["id"] for row in rows}) == size
            sides[split] |= texts(rows)
    assert not sides["train"] & sides["test"]
    # 2 signs and 10 × 10 digits: the whole space has 200 problems; a fifth, by hash, is held out.
    assert len(sides["train"] | sides["test"]) <= 200
    assert len(sides["test"]) < 70


def test_the_side_does_not_depend_on_the_style():
    sides = [
        reasoning_gym(family="spell_backward", size=300, split=split, seed=seed, style=style)
        for split, seed, style in (("train", 1, "full"), ("test", 2, "short"))
    ]
    assert not {row["answer"] for row in sides[0]} & {row["answer"] for row in sides[1]}


def test_seeds_give_different_problems_and_equal_seeds_equal_ones():
    wide = {"min_digits": 4, "max_digits": 4}
    first, second, again = (
        reasoning_gym(family="chain_sum", size=200, split="train", seed=seed, config=wide) for seed in (1, 2, 1)
    )
    assert first == again
    assert not texts(first) & texts(second)


def test_a_space_that_is_too_small_is_described():
    with pytest.raises(StepError, match=r"200 distinct problems, \d+ of them train, but size is 400; lower `size`"):
        reasoning_gym(family="chain_sum", size=400, split="train", config=ONE_DIGIT)


def test_unknown_names_are_refused_with_advice():
    with pytest.raises(StepError, match="did you mean 'chain_sum'"):
        reasoning_gym(family="chain_smu", size=1, split="train")
    with pytest.raises(StepError, match="min_term"):
        reasoning_gym(family="chain_sum", size=1, split="train", config={"min_term": 2})
    with pytest.raises(StepError, match="min_terms"):
        reasoning_gym(family="chain_sum", size=1, split="train", config={"min_terms": 9, "max_terms": 2})
    with pytest.raises(StepError, match="use `full`"):
        reasoning_gym(family="prime_factorization", size=20, split="train", style="short")


@pytest.mark.parametrize(
    "family", ["chain_sum", "spell_backward", "gcd", "knights_knaves", "word_sorting", "countdown"]
)
def test_any_family_is_scored_by_its_own_verifier(family):
    rows = reasoning_gym(family=family, size=5, split="test", seed=3)
    for row in rows:
        source, entry = entry_of(row)
        assert entry["question"].strip() == row["prompt"][0]["content"]
        assert source.score_answer(row["answer"], entry) == 1.0
    assert scored(rows, [row["answer"] for row in rows]) == [1.0] * 5
    assert exact(rows, [row["answer"] for row in rows]) == [1.0] * 5
    assert max(scored(rows, ["no such thing"] * 5)) < 1.0


def test_many_right_answers_are_right():
    (row,) = reasoning_gym(family="countdown", size=1, split="train", seed=1)
    other = f"({row['answer']})"
    assert (exact([row], [other]), scored([row], [other])) == ([0.0], [1.0])


def test_rows_of_others_are_not_scored():
    row = {"id": "x", "prompt": [], "answer": "1", "family": "own", "metadata": None}
    with pytest.raises(StepError, match="row x: metadata does not say"):
        scored([row], ["1"])
    (made,) = reasoning_gym(family="gcd", size=1, split="train")
    assert json.loads(made["metadata"])["family"] == "gcd"
    with pytest.raises(StepError, match="generate the data again"):
        scored([made | {"answer": "-1"}], ["1"])
