import numpy as np
import pytest

from learning.evaluation.sampled_answers import compute_weighted_scores
from learning.lookup import bind
from learning.preference.duels import logistic, styles
from learning.problems.partitions import part
from learning.rewards.duels import against
from learning.rewards.wording import keywords
from learning.teachers.basic import styled
from learning.toy_tasks.errands import errands, stock_reply
from learning.toy_tasks.stories import count_broken_rules, openings, storyteller
from schemas.errors import StepError
from schemas.use import DuelUse, RewardUse

ROW = {"id": "p", "prompt": [{"role": "user", "content": "3 + 4 ="}], "answer": "7"}
THREE = ["{answer}", "= {answer}", "so {answer}"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_logistic_judge_weighs_being_right_against_being_short():
    assert logistic(ROW, "7", "8") == pytest.approx(sigmoid(2))
    assert logistic(ROW, "7", "8 or so", brevity=0.1) == pytest.approx(sigmoid(2.6))
    assert logistic(ROW, "well, 7", "7", brevity=0.1, marker=", ") == pytest.approx(sigmoid(2 - 0.6))


def test_styles_are_distinguished_and_their_answers_are_read():
    assert styles(ROW, "= 7", "so 7", styles=THREE) == pytest.approx(sigmoid(2))
    assert styles(ROW, "= 7", "= 9", styles=THREE) == pytest.approx(sigmoid(2))
    assert styles(ROW, "so 9", "7", styles=THREE) == 0.5
    assert styles(ROW, "", "9", styles=THREE, cycle=1.0) == pytest.approx(sigmoid(-1))
    for wrong in (["{answer}"] * 2, ["a", "b", "c"]):
        with pytest.raises(StepError, match="at least three templates"):
            styles(ROW, "7", "7", styles=wrong)


def test_a_duel_by_a_reward_and_the_win_rates_it_gives():
    quality = {"use": "wording.keywords", "words": ["yes"], "per_character": 0.1}
    judge = bind(RewardUse(use="duels.win_rate", by={"use": "better", "of": quality}), "rewards.0")
    # yes .7, no −.2, yes .7
    assert compute_weighted_scores([judge], [1.0], [ROW] * 3, ["yes", "no", "yes"]) == pytest.approx(
        [2 / 3, 1 / 6, 2 / 3]
    )
    soft = bind(DuelUse(use="better", of=quality, scale=0.5), "by")
    supplies = {"row": ROW, "first": "yes", "second": "no", "step": 0, "seed": 0, "states": {}}
    assert soft.ask(0, supplies) == pytest.approx(sigmoid(0.9 / 0.5))
    unknown = bind(DuelUse(use="better", of={"use": "answers.exact"}), "by")
    assert unknown.ask(0, supplies | {"row": ROW | {"answer": None}}) == 0.5


def test_against_an_opponent_that_says_the_same_it_is_a_draw(tiny_policy_folder):
    options = {"opponent": tiny_policy_folder, "max_completion_length": 6}
    seen = []

    def by(row, first, second):
        seen.append(second)
        return float(len(first) > len(second))

    scores = against([ROW] * 2, ["", "x" * 50], np.random.default_rng(0), by=by, **options)
    assert scores == [0.0, 1.0]
    assert seen[0] == seen[1]
    again = against(
        [ROW], [seen[0]], np.random.default_rng(9), by=lambda row, first, second: first == second, **options
    )
    assert again == [True]
    long = ROW | {"prompt": [{"role": "user", "content": "x" * 200}]}
    assert against([long], ["a"], np.random.default_rng(0), by=by, **options) == [None]


def test_keywords_count_words_and_characters():
    assert keywords([ROW] * 2, ["sure, done", "no"], words=["sure", "done", "thanks"], per_character=0.1) == [1.0, -0.2]


def test_a_styled_teacher_uses_every_style_and_errs_at_its_rate():
    rng = np.random.default_rng(0)
    answers = [styled(ROW, rng, styles=THREE, error_rate=0.25) for _ in range(400)]
    shares = [sum(s.startswith(p) for s in answers) / 400 for p in ("= ", "so ")]
    assert all(0.25 < share < 0.42 for share in shares)
    right = sum(s in ("7", "= 7", "so 7") for s in answers) / 400
    assert 0.68 < right < 0.82


@pytest.mark.parametrize("made", [errands, openings])
def test_worlds_are_split_by_problem_and_repeatable(made):
    train, test = (made(split=s, size=40, seed=i) for i, s in enumerate(("train", "test")))
    assert train == made(split="train", size=40, seed=0)
    assert len({r["id"] for r in train}) == 40
    other = made(split="train", size=40, seed=3)
    assert not {r["id"] for r in [*train, *other]} & {r["id"] for r in test}
    with pytest.raises(StepError, match="lower `size`"):
        made(split="test", size=5000, **({"most": 1} if made is openings else {}))


def test_errands_are_of_the_families_that_are_asked_for():
    rows = errands(split="train", size=50, families=["cooking"])
    assert {r["family"] for r in rows} == {"cooking"}
    rng = np.random.default_rng(0)
    replies = [stock_reply(rows[0], rng, phrases=["a", "b"], most=2) for _ in range(50)]
    assert {"a", "b", "a b", "b a", "a a", "b b"} == set(replies)


def test_stories_hold_together_but_for_the_storytellers_errors():
    rng = np.random.default_rng(0)
    rows = openings(split="train", size=100, seed=1)
    for row in rows:
        lines = row["prompt"][0]["content"].split("\n")
        assert [count_broken_rules(lines[:i], line) for i, line in enumerate(lines)] == [0] * len(lines)
    broken = [
        count_broken_rules(row["prompt"][0]["content"].split("\n"), storyteller(row, rng, error_rate=0.3)) > 0
        for row in rows
    ]
    assert 15 < sum(broken) < 45
    assert not any(
        count_broken_rules(row["prompt"][0]["content"].split("\n"), storyteller(row, rng, rare=1.0)) for row in rows
    )


def test_a_part_beyond_the_last_is_refused(tmp_path):
    with pytest.raises(StepError, match="number 4 is above the 3 parts"):
        part(data=tmp_path, number=4, of=3)
