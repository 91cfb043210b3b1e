"""Kinds of control in several worlds, and without packages that their worlds do not need."""

import sys

import numpy as np
import pytest

from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import require_libraries
from learning.control.tables.counts import write_table
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.stages.collect import Collect
from schemas.stages.evaluate_control import EvaluateControl
from tasks import collect, evaluate_control
from tasks.context import Context

TABLE = NetworkSettings(hidden_sizes=[])


@pytest.fixture
def context(tmp_path):
    def context(name, inputs=None):
        made = Context(inputs or {}, tmp_path / name, tmp_path / name / "checkpoints", seed=3)
        made.folder.mkdir()
        return made

    return context


@pytest.fixture
def save(tmp_path):
    def save(name, table, form, start=0):
        spaces = Spaces(*table.shape, start=start)
        actor = getattr(Networks(spaces, TABLE), form)()
        write_table(actor, table)
        (tmp_path / name).mkdir()
        ControlPolicy(spaces, TABLE, form, actor).save(tmp_path / name, {})
        return tmp_path / name

    return save


@pytest.mark.parametrize("env", ["tests.control_worlds:line", {"use": "two_step"}])
def test_worlds_of_gymnasium_and_shipped_teams_do_not_need_pettingzoo(env, context, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pettingzoo"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "learning.control.worlds.team_games", raising=False)
    require_libraries()
    stage = Collect.model_validate({"kind": "collect", "env": env, "policy": "random", "environment_steps": 8})
    assert collect.run(stage, context("data")).metrics["steps"] == 8


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(StepError, match="gymnasium"):
        require_libraries()


def evaluate(context, name, models, **settings):
    stage = {"kind": "evaluate_control", "models": {one: one for one in models}, "episodes": 40, **settings}
    step = context(name, {f"models.{one}": folder for one, folder in models.items()})
    result = evaluate_control.run(EvaluateControl.model_validate(stage), step)
    return result.metrics, step.output("report")


def test_every_start_is_played_in_all_worlds_and_the_worst_is_that_of_the_lowest_mean(context, save):
    """To the right through the corridor: it is reached in a long episode, and never in one of a single step."""
    right = save("right", np.tile([[0.0, 1.0]], (9, 1)), "make_choice_values", start=1)
    corridors = [{"use": "tests.control_worlds:corridor", "cells": 9, "limit": limit} for limit in (12, 4, 8)]
    metrics = [{"use": "mean_return"}, {"use": "worst_return"}]
    made, report = evaluate(
        context, "many", {"right": right}, env=corridors[0], other_envs=corridors[1:], metrics=metrics
    )
    alone = [
        evaluate(context, f"one{n}", {"right": right}, env=one)[0]["mean_return"] for n, one in enumerate(corridors)
    ]
    assert alone[0] == alone[2] == 1
    assert 0.3 < alone[1] < 0.7  # from half of the cells the end is at most four steps away
    assert made["worst_return"] == pytest.approx(alone[1])
    assert made["mean_return"] == pytest.approx(np.mean(alone))
    assert (report / "results.json").is_file()


def test_another_world_with_other_spaces_is_refused(context, save):
    right = save("right", np.tile([[0.0, 1.0]], (5, 1)), "make_choice_values", start=1)
    corridors = [{"use": "tests.control_worlds:corridor", "cells": cells} for cells in (5, 6)]
    with pytest.raises(StepError, match=r"other_envs\.0"):
        evaluate(context, "many", {"right": right}, env=corridors[0], other_envs=corridors[1:])


def test_drawn_actions_follow_the_distribution_and_repeat(context, save):
    """Choices 0, 1 and 2 earn their number; with chances (.5, .25, .25) a step earns .75, the likeliest choice 0."""
    table = np.log([[0.5, 0.25, 0.25]])
    models = {name: save(name, table, "make_stochastic_actor") for name in ("one", "two")}
    drawn, _ = evaluate(context, "drawn", models, env="tests.control_worlds:tally", explore=True, episodes=200)
    assert drawn["mean_return.one"] == drawn["mean_return.two"] == pytest.approx(4 * 0.75, abs=0.4)
    likeliest, _ = evaluate(context, "likeliest", models, env="tests.control_worlds:tally")
    assert likeliest["mean_return.one"] == 0
