"""recipes/control.yaml, small: the run, its report, a second run that does nothing; the key of an env of one's own."""

import io
import json

import pytest
from rich.console import Console

from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import plan_recipe
from flows.runs.start import start_run
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.package import ROOT
from schemas.recipe.load import load_recipe

WORLD = """
import gymnasium
import numpy as np


class Balance(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, drift):
        self.drift = drift

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x = float(np.clip(self.x * (1 + self.drift) + 0.5 * action[0], -10, 10))
        self.steps += 1
        return np.array([self.x], np.float32), -self.x**2, False, self.steps >= 20, {}


def balance(*, drift: float = 0.2):
    return Balance(drift)
"""


def test_the_shipped_recipe_runs_and_a_second_run_does_nothing(tmp_path):
    layout, printed = Layout(tmp_path), io.StringIO()
    plan = plan_recipe(ROOT / "recipes/control.yaml", layout, tiny=True)
    outcome = start_run(plan, layout, "inprocess", Console(file=printed, width=200))
    assert {state.state for state in outcome.states.values()} == {"done"}, printed.getvalue()
    again = plan_recipe(ROOT / "recipes/control.yaml", layout, tiny=True)
    verdicts = explain_plan(again, layout)
    assert {verdict for verdict, _ in verdicts.values()} == {"HIT"}
    report = next((tmp_path / ".posttrain/runs").glob("*/report.html")).read_text()
    assert "mean_return" in report
    manifests = [json.loads(p.read_text()) for p in (tmp_path / ".posttrain/artifacts").glob("*/manifest.json")]
    types = {m["kind"]: {o["type"] for o in m["outputs"].values()} for m in manifests}
    expected = {"collect": "transitions", "control": "control_policy", "evaluate_control": "eval_report"}
    assert types == {kind: {kept} for kind, kept in expected.items()}


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(WORLD)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"extends: {ROOT / 'recipes/control.yaml'}\nname: own\n")

    def plan(*overrides):
        layout = Layout(tmp_path)
        return {step.name: step.key for step in plan_recipe(recipe, layout, overrides=overrides).steps}

    return tmp_path / "mine.py", plan


def test_the_code_of_ones_own_env_is_in_the_keys(own):
    file, plan = own
    settings = ("vars.env=mine:balance", "stages.expert.policy=random")
    before = plan(*settings)
    file.write_text(WORLD + "\n# a comment\n")
    assert plan(*settings) == before
    file.write_text(WORLD.replace("0.5 * action", "0.6 * action"))
    after = plan(*settings)
    assert all(after[name] != key for name, key in before.items())


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        ("{kind: control, env: Pendulum-v1, environment_steps: 10}", "algorithm: sac"),
        ("{kind: control, env: Pendulum-v1, algorithm: grpo, environment_steps: 10}", "no algorithm `grpo`"),
        ("{kind: sac, env: Pendulum-v1}", "write `kind: control` and `algorithm: sac`"),
        ("{kind: control, env: Pendulum-v1, algorithm: sac}", "give `environment_steps`"),
        ("{kind: control, env: Pendulum-v1, algorithm: sac, max_steps: 5}", "needs `data`"),
        ("{kind: control, env: Pendulum-v1, algorithm: {a: 1}, max_steps: 5}", "`algorithm` must be a name"),
        ("{kind: collect, env: Pendulum-v1, policy: random}", "give `environment_steps` or `episodes`"),
        ("{kind: collect, env: Pendulum-v1, episodes: 2}", "give one of `model`, a trained policy"),
        ("{kind: collect, env: Pendulum-v1, policy: rondom, episodes: 2}", "rondom"),
        ("{kind: rl, algorithm: sac, model: x, prompts: y}", "no algorithm `sac`"),
    ],
)
def test_bad_settings_are_errors_that_say_what_to_do(stage, error, tmp_path):
    (tmp_path / "r.yaml").write_text(f"stages:\n  s: {stage}\n")
    with pytest.raises(RecipeError) as raised:
        load_recipe(tmp_path / "r.yaml")
    assert error in str(raised.value)
