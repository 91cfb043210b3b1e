"""What the documentation shows works: its code runs, its recipes validate."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from flows.cli import app
from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import single_turn
from learning.data.rows import write_rows
from learning.samples.engine_protocol import Generation
from schemas.modules import list_modules
from schemas.recipe.load import load_recipe
from schemas.stages.rl import Rl
from schemas.supplied import FIXED
from schemas.use import Use
from tasks.context import Context
from tasks.rl import run as run_rl

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+) (?:file=)?(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs/extending.md").read_text()
BLOCKS = [m.groups() for m in BLOCK.finditer(PAGE)]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder with the page's Python files, on the path, and the shipped recipe to change."""
    for language, name, text in BLOCKS:
        if language == "python" and name.startswith("my_lab/"):
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


def test_the_reference_of_recipes_is_up_to_date():
    printed = CliRunner().invoke(app, ["schema", "--markdown"])
    assert printed.exit_code == 0
    assert (ROOT / "docs/recipes.md").read_text() == printed.stdout, "run `make docs`"


def test_a_user_reward_validates_and_scores(lab):
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
    supplies = {"rows": rows, "completions": ["3", "4", "5", "no"]}
    assert reward.ask(0, supplies) == [1.0, 0.1, 0.1, 0.0]


def test_an_algorithm_is_a_file(lab):
    slots = block("algorithm")
    recipe = load_recipe(changed(lab, lambda stages: stages["rl_2"].update(slots)))
    assert recipe.settings("rl_2")["policy_loss"]["epsilon_high"] == 0.28
    weigh = {"use": "constant", "length": 64, "by": "episode", "count_dropped": False}
    assert recipe.settings("rl_2")["loss_aggregation"] == weigh
    # Two completions of a group, of two tokens and one, whose ratios are inside, on and beyond the bounds.
    ratios = [1.2, 1.3, 0.5]
    terms = [-1.2 * 0.5, -1.28 * 0.5, 0.8 * 0.5]
    assert loss_of(slots, ratios) == pytest.approx(sum(terms) / (64 * 2), abs=1e-15)


def test_an_algorithm_is_one_function_and_a_file(lab, tiny_policy_folder):
    slots = block("tempered")
    recipe = load_recipe(changed(lab, lambda stages: stages["rl_2"].update(slots)))
    assert ("my_lab.objectives", "tempered") in recipe.code("rl_2")
    ratios = [1.2, 1.3, 0.5]
    for step, power in ((0, 1.0), (50, 0.75), (500, 0.5)):
        terms = [-a * (r**power - 1) / power for a, r in zip([0.5, 0.5, -0.5], ratios, strict=True)]
        assert loss_of(slots, ratios, step) == pytest.approx(sum(terms) / 3, abs=1e-15)
    # While sampling and training agree its gradient is the clipped one's: the first step is the same.
    tempered = after_one_iteration(lab, "tempered", tiny_policy_folder, slots)
    clipped = after_one_iteration(lab, "clipped", tiny_policy_folder, slots | {"policy_loss": "clipped"})
    before = load_file(tiny_policy_folder / "model.safetensors")
    for name, weight in tempered.items():
        torch.testing.assert_close(weight, clipped[name], rtol=0, atol=1e-6)
    assert max(float((weight - before[name]).abs().max()) for name, weight in tempered.items()) > 1e-3


def rl_stage(slots: dict) -> Rl:
    base = {"kind": "rl", "model": "m", "prompts": "p", "rewards": [{"use": "formats.matches", "pattern": ".*[a-m]"}]}
    sizes = {"generation_batch_size": 16, "num_generations": 8, "max_completion_length": 4, "max_steps": 1}
    return Rl.model_validate(base | sizes | {"learning_rate": 1e-2} | slots)


def loss_of(slots: dict, ratios: list[float], step: int = 0) -> float:
    """The loss of two completions with rewards 1 and 0, of two tokens and one, at given ratios."""
    algorithm = bind_algorithm(rl_stage(slots), {})
    made = single_turn([[1]], [[Generation([7] * n, [-1.0] * n, "stop") for n in (2, 1)]])
    batch = with_dropped(made.with_paths(reward=torch.tensor([1.0, 0.0], dtype=torch.float64)), False)
    batch = with_weights(algorithm, with_advantages(algorithm, batch, step), step, 64)
    supplies = {
        "log_ratio_T": torch.tensor(ratios, dtype=torch.float64).log(),
        "advantage_T": batch.sampled("advantage"),
    }
    return float((batch.sampled("w") * algorithm.policy_loss.ask(step, supplies)).sum())


def after_one_iteration(lab: Path, name: str, policy: Path, slots: dict) -> dict[str, torch.Tensor]:
    """The weights after one iteration of the real loop."""
    rows = [
        {"id": t, "prompt": [{"role": "user", "content": t}], "answer": "", "family": "f", "metadata": ""} for t in "ab"
    ]
    (lab / name / "prompts").mkdir(parents=True)
    write_rows(lab / name / "prompts", "prompts", rows)
    inputs = {"model": policy, "prompts": lab / name / "prompts"}
    run_rl(rl_stage(slots), Context(inputs, lab / name, lab / name / "checkpoints", seed=1))
    return load_file(lab / name / "outputs/model/model.safetensors")


def slots_of(model: type) -> Iterator[tuple[str, type[Use]]]:
    """Key and slot of every field whose functions ask by name."""
    for key, spec in model.model_fields.items():
        parts = [spec.annotation]
        while parts:
            part = parts.pop()
            parts += get_args(part)
            if isinstance(part, type) and issubclass(part, Use) and part.asks:
                yield key, part


def test_the_table_of_slots_is_what_the_slots_ask_for():
    table = re.findall(r"^\| `(\w+)` \| `learning/(\S+?)(?:\.py|/<family>\.py)` \| (.*?) \|", PAGE, re.MULTILINE)
    slots = dict(slots_of(Rl))
    shown = {key for key, _, _ in table}
    assert shown == set(slots) - {"logits_processors", "engine"}
    for key, home, asked in table:
        place = f"learning.{home}".replace("/", ".")
        assert place in {*slots[key].home, *(module for home in slots[key].home for module in list_modules(home))}
        known = slots[key].asks | set(slots[key].takes or ())
        assert set(re.findall(r"`(\w+)`", asked)) <= known, key
    fixed = re.findall(r"`(\w+_T)`", PAGE.partition("Fixed columns")[2].partition("\n\n")[0])
    assert set(fixed) <= FIXED


def test_a_user_tool_validates_and_answers(lab):
    from learning.environments.lookup_environment import build_environment
    from schemas.use import EnvUse

    slots = block("tools")
    recipe = load_recipe(changed(lab, lambda stages: stages["rl_2"].update(slots)))
    assert ("my_lab.tools", "stock") in recipe.code("rl_2")
    environment = build_environment(EnvUse.model_validate(slots["env"]), {})
    row = {"id": "1", "prompt": [], "metadata": '{"shelf": {"nails": 40}}'}
    episode = environment.begin(row, 0)
    replies = [episode.step(turn) for turn in ("stock: nails", "stock: glue", "calculator: 40*12", "480")]
    assert [outcome.observation for outcome in replies[:3]] == [
        "40 boxes",
        "error: there is no glue; there are nails",
        "480",
    ]
    assert [(outcome.ok, outcome.done) for outcome in replies] == [
        (True, False),
        (False, False),
        (True, False),
        (True, True),
    ]


def test_a_python_stage_runs(lab):
    from learning.data.rows import write_rows
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
