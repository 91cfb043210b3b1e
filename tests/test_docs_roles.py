"""What docs/roles.md shows works: its recipe validates, and its turn order is played by a team."""

import re
from pathlib import Path

import pytest
import yaml

from learning.collection import leagues, turn_orders
from learning.lookup import bind
from learning.samples.conversation import NextTurn, RoleTurn
from schemas.recipe.load import load_recipe
from schemas.roles import EvaluatedPolicy, LeagueSpec, RoleSpec, TeamPolicy, TurnOrderUse
from schemas.stages.rl import Rl

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/roles.md").read_text()
TEXT = {
    name: text for _, name, text in re.findall(r"^```(\w+) (?:file=)?(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
}


def test_its_recipe_validates(tmp_path):
    recipe = yaml.safe_load((ROOT / "recipes/papers/dr-mas.yaml").read_text())
    own = yaml.safe_load(TEXT["roles"]) | {"model": "first_solver"}
    recipe["extends"] = str(ROOT / "recipes/bases/chain_sum.yaml")
    recipe["stages"]["trained"] |= own
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    stage = load_recipe(tmp_path / "recipe.yaml").stages["trained"]
    assert list(stage.roles) == ["searcher", "library", "solver"]
    assert stage.outputs({})["searcher"] == "policy"


def test_its_evaluation_validates(tmp_path):
    recipe = yaml.safe_load((ROOT / "recipes/papers/dr-mas.yaml").read_text())
    recipe["extends"] = str(ROOT / "recipes/bases/chain_sum.yaml")
    recipe["stages"] |= yaml.safe_load(TEXT["evaluation"])
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    loaded = load_recipe(tmp_path / "recipe.yaml")
    ports = {port.path: port.steps for port in loaded.ports("exam")}
    assert ports["policies.searcher.models.trained"] == ("trained",)
    assert ports["policies.searcher.model"] == ("first_searcher",)


def test_its_questions_about_known_answers_are_those_of_the_row():
    own = Rl.model_validate(
        {
            "kind": "rl",
            "model": "m",
            "prompts": "p",
            "algorithm": "grpo",
            "max_steps": 1,
            **yaml.safe_load((ROOT / "recipes/algorithms/grpo.yaml").read_text()),
            **yaml.safe_load(TEXT["proposals"]),
        }
    )
    row = load_recipe(ROOT / "recipes/papers/search-self-play.yaml").stages["trained"]
    assert (own.rewards, own.advantage, own.turn_order) == (row.rewards, row.advantage, row.turn_order)
    assert list(own.roles) == list(row.roles)
    assert own.num_generations == row.num_generations


def test_the_page_names_the_weights_of_a_league():
    names = [name for name in vars(leagues) if name in ("uniform", "recent", "prioritised")]
    assert len(names) == 3
    assert not [name for name in names if f"`{name}`" not in PAGE]


def test_its_turn_order_is_played(tmp_path, monkeypatch):
    (tmp_path / "my_lab").mkdir()
    (tmp_path / "my_lab/orders.py").write_text(TEXT["my_lab/orders.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    order = bind(TurnOrderUse(use="my_lab.orders:argue", rounds=1))
    roles, turns, seen = ["pro", "con", "judge"], [], []
    while (following := order.ask(0, {"roles": roles, "turns": list(turns), "row": {"answer": "3"}})).role:
        seen.append((following.role, following.message))
        turns.append(RoleTurn(following.role, {"pro": "it is 3", "con": "it is 4", "judge": "3"}[following.role]))
    assert seen == [("pro", ""), ("con", "it is 3"), ("judge", "pro: it is 3\ncon: it is 4")]
    assert following == NextTurn(None, rewards={"pro": 1.0, "con": 1.0})


@pytest.mark.parametrize("name", ["in_order", "on_call"])
def test_the_page_names_the_turn_orders(name):
    assert f"`{name}`" in PAGE or f"use: {name}" in PAGE
    assert callable(getattr(turn_orders, name))


def test_the_page_names_every_key():
    keys = {*RoleSpec.model_fields, *TeamPolicy.model_fields, *LeagueSpec.model_fields, *EvaluatedPolicy.model_fields}
    assert not [key for key in keys if key not in PAGE]
