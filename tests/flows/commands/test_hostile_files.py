"""Verbs on files that are no recipes: their own error and exit code 3, and nothing is waited for."""

import os
import sys

import pytest

from flows.cli import main
from flows.commands.recipes import list_recipe_records, make_recipe_table
from flows.deployments.deployables import list_recipe_files, make_deployables
from lineage.layout import Layout

GOOD = "name: a\nstages:\n  base: {kind: init}\n"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "pyproject.toml").touch()
    os.mkfifo(tmp_path / "recipes" / "pipe.yaml")
    (tmp_path / "recipes" / "bomb.yaml").write_text(BOMB)
    (tmp_path / "recipes" / "good.yaml").write_text(GOOD)
    (tmp_path / "recipes" / "seven.yaml").write_text("stages: 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    return tmp_path


def test_all_recipes_are_listed_and_deployed_but_those_that_are_none(lab):
    layout = Layout(lab)
    table = make_recipe_table(list_recipe_records(lab / "recipes"))
    assert list(table.columns[1].cells) == ["", "1", "", ""]
    made, wrong = make_deployables(list_recipe_files(layout), layout)
    assert [one.recipe.name for one in made] == ["a"]
    assert sorted(error.problems[0].file.rpartition("/")[2] for error in wrong) == ["pipe.yaml", "seven.yaml"]


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "recipes/pipe.yaml"],
        ["validate", "/dev/zero"],
        ["validate", "recipes/bomb.yaml"],
        ["validate", "recipes"],
        ["plan", "recipes/pipe.yaml"],
        ["run", "recipes/pipe.yaml"],
        ["plan", "recipes/good.yaml", "--set", "stages.².x=1"],
        ["plan", "recipes/good.yaml", "--set", "stages.s={kind: sft, model: base, data: 'path:/', max_steps: 1}"],
        ["validate", "recipes/good.yaml", "--set", "stages.base.config={hidden_size: many}"],
    ],
)
def test_verbs_say_what_is_wrong_and_return_3(lab, monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["posttrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    output = capsys.readouterr().err
    assert output
    assert "Traceback" not in output
