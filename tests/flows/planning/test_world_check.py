"""Environments that recipes name by Gymnasium's ids."""

import gymnasium
import pytest

from flows.planning.world_check import find_world_problems, list_registered
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = "schema_version: 1\nname: x\nstages:\n  c: {{kind: control, env: {env}, loss: sac, environment_steps: 5000}}\n"


def load(tmp_path, env):
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.format(env=env))
    return load_recipe(path)


def test_every_environment_of_gymnasium_is_known():
    own = {name for name, spec in gymnasium.registry.items() if "gymnasium" in str(spec.entry_point)}
    assert "Pendulum-v1" in own <= list_registered()


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5", "my_world:World-v0", "{use: point}", "point"])
def test_what_exists_or_cannot_be_known_passes(env, tmp_path):
    assert [*find_world_problems(load(tmp_path, env))] == []


@pytest.mark.parametrize(("env", "column"), [("CartPoll-v1", 27), ("{use: gymnasium, id: CartPoll-v1}", 48)])
def test_a_misspelt_id_is_named_at_its_place(env, column, tmp_path):
    (problem,) = find_world_problems(load(tmp_path, env))
    assert (problem.line, problem.column) == (4, column)
    assert "Gymnasium has no environment CartPoll-v1; did you mean CartPole-v1?" in str(problem)


def test_a_misspelt_id_of_minigrid_is_named_at_its_place(tmp_path):
    pytest.importorskip("minigrid", reason="no MiniGrid: pip install 'posttrain[control]'")
    for right in ("MiniGrid-Empty-5x5-v0", "BabyAI-GoToLocal-v0", "MiniGrid-WFC-MazeSimple-v0"):
        assert [*find_world_problems(load(tmp_path, f'"minigrid:{right}"'))] == []
    (problem,) = find_world_problems(load(tmp_path, '"minigrid:MiniGrid-Empty-5x5-v1"'))
    assert (problem.line, problem.column) == (4, 27)
    assert "MiniGrid has no environment MiniGrid-Empty-5x5-v1; did you mean MiniGrid-Empty-5x5-v0?" in str(problem)


def test_a_text_that_is_no_id_names_a_function(tmp_path):
    with pytest.raises(RecipeError, match=r"no world `pont`\n.*did you mean `point`"):
        load(tmp_path, "pont")


def test_ids_that_other_packages_may_add_are_not_judged(tmp_path, monkeypatch):
    class Plugin:
        name = "__root__"

    list_registered.cache_clear()
    monkeypatch.setattr("flows.planning.world_check.entry_points", lambda group: [Plugin()])
    assert [*find_world_problems(load(tmp_path, "CartPoll-v1"))] == []
    list_registered.cache_clear()
