"""What the documentation shows works: its code runs, its recipes validate."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from schemas.recipe import load_recipe

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+) (?:file=)?(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [m.groups() for m in BLOCK.finditer((ROOT / "docs/extending.md").read_text())]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder with the page's Python files, on the path, and the shipped recipe to change."""
    for language, name, text in BLOCKS:
        if language == "python":
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [m for m in sys.modules if m.split(".")[0] == "my_lab"]:
        del sys.modules[name]


def block(kind: str) -> dict:
    return yaml.safe_load(next(text for language, name, text in BLOCKS if (language, name) == ("yaml", kind)))


def changed(lab: Path, change) -> Path:
    recipe = yaml.safe_load((ROOT / "recipes/quickstart.yaml").read_text())
    change(recipe["stages"])
    (lab / "changed.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return lab / "changed.yaml"


def test_the_recipe_of_the_readme_validates(tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    recipes = [text for text in blocks if "\nstages:" in text]
    assert recipes
    for text in recipes:
        (tmp_path / "readme.yaml").write_text(text)
        assert load_recipe(tmp_path / "readme.yaml").stages


@pytest.mark.parametrize(("options", "file"), [(["--markdown"], "docs/recipes.md"), ([], "recipes/recipe.schema.json")])
def test_what_is_generated_is_up_to_date(options, file):
    printed = CliRunner().invoke(app, ["schema", *options])
    assert printed.exit_code == 0
    assert (ROOT / file).read_text() == printed.stdout, "run `make docs`"


def test_a_reward_of_ones_own_validates_and_scores(lab):
    from learning.lookup import bind
    from schemas.use import RewardUse

    recipe = load_recipe(changed(lab, lambda stages: stages["rl_2"].update(block("recipe"))))
    assert recipe.settings("rl_2")["rewards"][1]["limit"] == 8
    reward = bind(RewardUse.model_validate({"use": "my_lab.rewards:brevity", "limit": 8}))
    assert reward([{}] * 3, ["x" * 8, "x" * 12, "x" * 99]) == [1.0, 0.5, 0.0]


def test_a_reward_made_of_rewards_validates_and_scores(lab):
    from learning.lookup import bind
    from schemas.use import RewardUse

    rewards = block("nested")
    recipe = load_recipe(changed(lab, lambda stages: stages["rl_2"].update(rewards)))
    assert recipe.settings("rl_2")["rewards"][0]["other"]["pattern"] == "[0-9]+"
    assert ("learning.rewards.formats", "matches") in recipe.code("rl_2")
    reward = bind(RewardUse.model_validate(rewards["rewards"][0]))
    rows = [{"answer": "3"}, {"answer": "3"}, {"answer": None}, {"answer": "x"}]
    have = {"rows": rows, "completions": ["3", "4", "5", "no"]}
    assert reward.ask(0, have) == [1.0, 0.1, 0.1, 0.0]


def test_an_algorithm_is_a_file(lab):
    slots = block("algorithm")
    recipe = load_recipe(changed(lab, lambda stages: stages["rl_2"].update(slots)))
    assert recipe.settings("rl_2")["surrogate"]["epsilon_high"] == 0.28
    weigh = {"use": "constant", "length": 64, "by": "episode", "count_dropped": False}
    assert recipe.settings("rl_2")["weigh"] == weigh


def test_a_python_stage_runs(lab):
    from learning.rows import write_rows
    from schemas.stages.python import Python
    from tasks.context import Context
    from tasks.python import run

    load_recipe(changed(lab, lambda stages: stages.update(block("stage"))))
    rows = [{"id": str(i), "prompt": [], "answer": "", "family": f, "metadata": ""} for i, f in enumerate("aab")]
    (lab / "data").mkdir()
    write_rows(lab / "data", "prompts", rows)
    context = Context(inputs={"inputs.data": lab / "data"}, folder=lab / "out", checkpoints=lab / "c", seed=0)
    result = run(Python.model_validate(block("stage")["counts"]), context)
    assert result.metrics == {"a": 2, "b": 1}
    assert (lab / "out/outputs/result/counts.json").read_text() == '{"a": 2, "b": 1}'
