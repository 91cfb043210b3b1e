"""Whole episodes in the environments of libraries, as a stage of rl plays them; the model's turns are dictated."""

from pathlib import Path

import pytest

from learning.models.policy import Policy
from learning.problems.starts import starts
from schemas.recipe.load import load_recipe
from schemas.use import EnvUse
from tests.papers.dictated import TOKENS, play

RECIPES = Path(__file__).parents[3] / "recipes"
OWN = '''
from learning.environments.protocol import Outcome


class Environment:
    """Counts turns; an episode keeps what it likes in attributes of any name."""

    def begin(self, row, seed):
        return Play()


class Play:
    def __init__(self):
        self.state = {"turns": 0}

    def step(self, action):
        self.state["turns"] += 1
        return Outcome("again", done=self.state["turns"] == 3, reward=float(action == "7"))
'''


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4 * TOKENS)


@pytest.mark.parametrize("recipe", ["verifiers", "frozen-lake", "textarena"])
def test_an_environment_of_a_library_is_played_to_its_end(recipe, policy):
    stage = load_recipe(RECIPES / f"{recipe}.yaml").stages["trained"]
    (row,) = starts(env=stage.env, size=1)
    turns = [str(number) for number in range(40)]
    (sample,), _ = play(policy, stage, row, [turns])
    assert 1 <= len(sample.turns) <= stage.env.max_turns
    assert all(turn.state > 0 for turn in sample.turns)
    assert sample.reward is not None


def test_an_episode_may_keep_attributes_of_any_name(policy, tmp_path, monkeypatch):
    (tmp_path / "own_counter.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    stage = load_recipe(RECIPES / "verifiers.yaml").stages["trained"]
    env = EnvUse(use="own_counter:Environment", max_turns=5)
    row = {"id": "a", "prompt": [{"role": "user", "content": "1"}], "answer": None, "family": "own", "metadata": "{}"}
    (sample,), _ = play(policy, stage, row, [["3", "7", "1"]], env=env)
    assert [turn.reward for turn in sample.turns] == [0.0, 1.0, 0.0]
