"""MLE-Dojo: actions of an engineer, and the position on a leaderboard as a reward that ignores metric and scale.

Episodes are dictated; environment, rewards and advantages are those of the recipe. Not shown: that an agent climbs
boards, which is measured.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from learning.data.leaderboards import find_position, rank_score
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.models.policy import Policy
from schemas.recipe.load import load_recipe
from schemas.use import EnvUse, ProblemsUse
from tests.papers.dictated import play

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "mle-dojo.yaml").stages
TRAINED, RAW = STAGES["trained"], STAGES["raw"]
ACCURACY, RMSE = (0.9, 0.8, 0.7, 0.6), (0.1, 0.2, 0.3, 0.4)
SAVE = "open('submission.csv', 'w').write('\\n'.join("


def make_row(metric="rmse", board=RMSE, answers=("1", "2", "3", "4"), name="r"):
    about = {
        "info": {"data": "four numbers"},
        "files": {"kit.py": "", "train.csv": "x,y\n1,1\n"},
        "answers": list(answers),
        "metric": metric,
        "leaderboard": board if isinstance(board, dict) else list(board),
    }
    return {
        "id": name,
        "prompt": [{"role": "user", "content": "compete"}],
        "answer": None,
        "metadata": json.dumps(about),
    }


def begin(row, stage=TRAINED):
    return build_environment(stage.env, {}).begin(row, 0)


def submit(values):
    """Return an action that submits values."""
    return f"execute_code {SAVE}{[str(value) for value in values]}))"


def off_by(error):
    """Return an action whose predictions of 1 to 4 are all off by an error, which is its RMSE then."""
    return submit([value + error for value in (1, 2, 3, 4)])


def test_the_score_ignores_metric_and_scale():
    """Of four entries two are beaten: (N − position + 1) / N with position 3, as in the released code."""
    answers, guesses = ["a"] * 20, ["a"] * 15 + ["b"] * 5
    accurate = begin(make_row("accuracy", ACCURACY, answers)).step(submit(guesses))
    near = begin(make_row("rmse", RMSE)).step(off_by(0.25))
    assert (accurate.reward, near.reward) == (0.5, 0.5)
    assert accurate.observation == "accuracy 0.75, rank 3 of 4"
    assert near.observation == "rmse 0.25, rank 3 of 4"


@pytest.mark.parametrize("change", [math.exp, math.sqrt, lambda x: 100 * x + 7, lambda x: x**3])
@pytest.mark.parametrize(("board", "more"), [(ACCURACY, True), (RMSE, False)])
def test_a_monotone_transform_of_the_metric_changes_nothing(change, board, more):
    scores = np.linspace(0.053, 0.953, 19)
    before = [rank_score(score, [board], more) for score in scores]
    assert before == [rank_score(change(score), [[change(entry) for entry in board]], more) for score in scores]
    assert before == [rank_score(-change(score), [[-change(entry) for entry in board]], not more) for score in scores]
    assert len(set(before)) == 5
    assert begin(make_row("mse", [entry**2 for entry in RMSE])).step(off_by(0.25)).reward == 0.5


def test_positions_are_counted_from_the_best_entry():
    assert [find_position(score, ACCURACY, True) for score in (0.95, 0.9, 0.85, 0.6, 0.5)] == [1, 1, 2, 4, 5]
    assert [find_position(score, RMSE, False) for score in (0.05, 0.1, 0.15, 0.4, 0.5)] == [1, 1, 2, 4, 5]
    two = {"public": list(RMSE), "private": [0.25, 0.26]}
    outcome = begin(make_row(board=two)).step(off_by(0.25))
    assert (outcome.reward, outcome.observation) == (0.75, "rmse 0.25, rank 3 of 4/1 of 2")


def test_validation_changes_neither_the_score_nor_the_number_of_submissions():
    episode = begin(make_row())
    told = episode.step(off_by(0.25).replace("execute_code", "validate_code"))
    assert (told.reward, told.done, told.ok) == (0.0, False, True)
    assert episode.save() == {"best": None, "submissions": 0}
    assert episode.step("validate_code print(6 * 7)").observation == "42"
    assert episode.step("request_info data").observation == "four numbers"
    assert episode.save() == {"best": None, "submissions": 0}
    assert episode.step(off_by(0.25)).reward == 0.5
    assert episode.save()["submissions"] == 1


@pytest.mark.parametrize("verb", ["validate_code", "execute_code"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = (", "SyntaxError"),
        ("open('/etc/passwd')", "PermissionError"),
    ],
)
def test_the_error_enters_the_next_observation(verb, code, error):
    outcome = begin(make_row()).step(f"{verb} {code}")
    assert error in outcome.observation
    assert (outcome.ok, outcome.reward, outcome.done) == (False, 0.0, False)


def test_an_error_is_what_the_model_sees_at_its_next_turn(tiny_policy):
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)
    _, contexts = play(policy, TRAINED, make_row(), [["execute_code 1 / 0", off_by(0.15), "submit"]])
    assert "ZeroDivisionError: division by zero" in contexts[0][1]
    assert "rank 2 of 4" in contexts[0][2]


def test_an_episode_earns_its_best_rank_and_ends_with_the_budget(tiny_policy):
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)
    scripts = [[off_by(0.35), off_by(0.15), off_by(0.45)], [off_by(0.15), "submit"], ["submit"], [off_by(0.05)] * 3]
    samples, _ = play(policy, TRAINED, make_row(), scripts)
    assert [sample.reward for sample in samples] == [0.75, 0.75, 0.0, 1.0]
    assert [[turn.reward for turn in sample.turns] for sample in samples] == [
        [0.25, 0.5, 0.0],
        [0.75, 0.0],
        [0.0],
        [1.0, 0.0, 0.0],
    ]
    assert all(sample.finish == "stop" for sample in samples)
    assert TRAINED.env.options["budget"] == 3


def test_the_raw_reward_is_in_the_unit_of_the_metric():
    """What the comparison changes: the same two positions are worth 0.15 and 15 in units that differ by 100."""
    rewards = {}
    for scale in (1, 100):
        answers = [str(scale * value) for value in (1, 2, 3, 4)]
        row = make_row("rmse", [scale * entry for entry in RMSE], answers)
        action = submit([scale * (value + 0.25) for value in (1, 2, 3, 4)])
        rewards[scale] = [begin(row, stage).step(action).reward for stage in (TRAINED, RAW)]
    assert rewards[1] == pytest.approx([0.5, 0.15])
    assert rewards[100] == pytest.approx([0.5, 15.0])
    worse = begin(make_row(), RAW)
    assert [worse.step(off_by(error)).reward for error in (0.9, 0.35)] == [0.0, pytest.approx(0.05)]


def test_the_search_keeps_good_traces_of_scripted_agents():
    explored = STAGES["explored"]
    assert EnvUse.model_validate(explored.search.options["env"]) == TRAINED.env
    assert (explored.model, explored.min_reward) == ("cold_start", 0.8)
    assert (STAGES["tuned"].data, STAGES["tuned"].model, STAGES["cold_start"].data) == (
        "explored",
        "cold_start",
        "traces",
    )
    (use,) = STAGES["traces"].problems
    small = ProblemsUse.model_validate({"use": use.use, **use.options, "of": {**use.options["of"], "size": 6}})
    said = [row["answer"].split(" ")[0] for row in bind(small)()]
    assert {"request_info", "execute_code", "submit"} <= set(said)


def test_the_trainings_differ_in_the_scale_of_the_reward_alone():
    trained, raw = (stage.model_dump() for stage in (TRAINED, RAW))
    assert (trained.pop("env"), raw.pop("env")) == (TRAINED.env.model_dump(), RAW.env.model_dump())
    assert RAW.env.options == TRAINED.env.options | {"score": "raw"}
    assert TRAINED.env.max_turns == RAW.env.max_turns
    assert trained == raw
    assert [part["use"] for part in trained["advantage"]] == ["center"]
    report = STAGES["report"]
    assert report.env == TRAINED.env
    assert [metric.use for metric in report.metrics] == ["mean_score"]
    held_out = bind(report.tasks[0])()
    assert not {row["id"] for row in held_out} & {row["id"] for row in bind(STAGES["contests"].problems[0])()}
