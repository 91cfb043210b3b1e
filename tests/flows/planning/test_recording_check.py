"""Worlds without pictures are named at their place before a run that would record them."""

import pytest

from flows.planning.recording_check import find_recording_problems
from schemas.recipe.load import load_recipe

RECIPE = """schema_version: 1
name: x
stages:
  policy: {{kind: control, env: {env}, algorithm: {algorithm}, environment_steps: 5000}}
  report:
    kind: evaluate_control
    env: {env}
    models: {{policy: policy}}
    record: {{episodes: 1}}
"""
WORLDS = """import gymnasium
from tests.control_worlds import Line

def plain():
    return Line()

def broken():
    raise OSError("no simulator here")
"""


def problems(tmp_path, env, algorithm="sac"):
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.format(env=env, algorithm=algorithm))
    return [*find_recording_problems(load_recipe(path))]


@pytest.mark.parametrize("env", ["{use: grid}", "{use: remembering, steps: 2, of: {use: t_maze}}"])
def test_worlds_with_pictures_pass(env, tmp_path):
    assert problems(tmp_path, env, "dqn") == []


def test_a_world_of_gymnasium_passes_where_pygame_is_installed(tmp_path):
    pytest.importorskip("pygame", reason="no pygame: pip install pygame-ce")
    assert problems(tmp_path, "Pendulum-v1") == []


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ("{use: planar_quadrotor}", "Quadrotor has no pictures: remove `record`"),
        ("my_worlds_of_record:plain", "Line has no pictures: remove `record`"),
        ("my_worlds_of_record:broken", "the env cannot be made: OSError: no simulator here"),
    ],
)
def test_a_world_without_pictures_is_named_at_its_place(env, reason, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_worlds_of_record.py").write_text(WORLDS)
    (problem,) = problems(tmp_path, env)
    assert (problem.line, problem.column) == (9, 13)
    assert reason in str(problem)


def test_a_world_of_an_earlier_stage_is_known_only_when_the_step_begins(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        RECIPE.format(env="{use: city, roads: grid}", algorithm="vdn").replace(
            "stages:\n", 'stages:\n  grid: {kind: python, function: {use: "learning.control.worlds.cities:lay_grid"}}\n'
        )
    )
    assert [*find_recording_problems(load_recipe(path))] == []
