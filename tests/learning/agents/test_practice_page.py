"""docs/practice.md: its recipe validates and its functions work."""

import re
import sys
from pathlib import Path

import pytest

from learning.agents.drafting import Drafting
from learning.agents.rollouts import Rollout
from learning.lookup import bind
from learning.sandbox.run import available
from schemas.agent import Agent, AuthorUse, ExtractorUse
from schemas.recipe.load import load_recipe

PAGE = (Path(__file__).parents[3] / "docs" / "practice.md").read_text()
BLOCKS = re.findall(r"^```(\w+) (?:file=)?(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    for language, name, text in BLOCKS:
        if language == "python":
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [m for m in sys.modules if m.split(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_the_recipe_of_the_page_validates(tmp_path):
    (tmp_path / "r.yaml").write_text(next(text for language, name, text in BLOCKS if name == "practice"))
    recipe = load_recipe(tmp_path / "r.yaml")
    assert [recipe.stages[name].kind for name in ("clerk", "practised", "report")] == ["agent", "practice", "evaluate"]
    assert recipe.settings("clerk")["author"] == {"use": "templates", "system": "", "error_rate": 0.0}


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_a_user_author(lab):
    author = bind(AuthorUse.model_validate({"use": "my_lab.authors:shouting", "name": "loud"}), "author")
    agent = Drafting(Agent.model_validate({"environment": "tools"})).written(author, "shout", 1, {"seed": 0})
    assert (agent.tool_names, agent.context.system) == (["loud"], "Call loud: and a text.")


def test_a_user_extractor(lab):
    extractor = bind(ExtractorUse.model_validate({"use": "my_lab.extractors:shortest", "most": 2}), "extractor")
    ranked = [Rollout(("c",), ("",), 1.0), Rollout(("d",), ("",), 0.0)]
    for known, want in ((["a", "b"], ["b", "c"]), (["c"], ["c"])):
        assert extractor.ask(0, {"rollouts": ranked, "experiences": known}) == want
