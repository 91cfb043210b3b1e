"""What docs/turns.md shows works: its environment is played, alone and by a model, and its recipes validate."""

import re
from pathlib import Path

import pytest
import yaml

from learning.data.chat import encode_prompt
from learning.environments import context_policies
from learning.environments.making import wrap_in_environment
from learning.environments.protocol import PastTurn
from learning.generation.engines.torch import Engine
from learning.lookup import bind
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.rl import Rl
from schemas.use import EnvUse

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/turns.md").read_text()
BLOCKS = re.findall(r"^```(\w+) (?:file=)?(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TEXT = {name: text for _, name, text in BLOCKS}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder with the page's environment, on the path."""
    (tmp_path / "my_lab").mkdir()
    for file in ("my_lab/ladder.py", "my_lab/contexts.py"):
        (tmp_path / file).write_text(TEXT[file])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_user_environment_is_played_by_hand(lab):
    namespace = {}
    exec(TEXT["play"], namespace)
    outcomes = [(o.observation, o.done, o.reward, o.ok) for o in namespace["said"]]
    assert outcomes == [("up or nothing", False, 0.0, False), ("at 1", False, 0.5, True), ("at 2", True, 0.5, True)]


def test_a_model_plays_it_and_its_randomness_is_the_episodes_own(lab, tiny_policy):
    own = EnvUse.model_validate(yaml.safe_load(TEXT["own"])["env"] | {"missing": 0.5})
    row = {"id": "r", "answer": "3", "prompt": [{"role": "user", "content": "climb"}]}
    request = Request(encode_prompt(tiny_policy.tokenizer, row["prompt"]), 4, 7, row=row)
    says = [*tiny_policy.tokenizer.encode("up", add_special_tokens=False), tiny_policy.tokenizer.eos_token_id]

    class Saying:
        """An engine that says one thing."""

        def generate(self, requests, sampling):
            from learning.samples.engine_protocol import Generation

            return [[Generation(list(says), [0.0] * 3, "stop") for _ in range(r.n)] for r in requests]

    episodes = [
        wrap_in_environment(Saying(), own, tiny_policy.tokenizer, {}).generate([request], Sampling(1.0, 96))[0]
        for _ in range(2)
    ]
    turns = [[turn.reward for turn in made.turns] for made in episodes[0]]
    assert turns == [[turn.reward for turn in made.turns] for made in episodes[1]]
    assert len({tuple(rewards) for rewards in turns}) > 1
    assert {made.finish for made in episodes[0]} <= {"stop", "length"}
    for made, rewards in zip(episodes[0], turns, strict=True):
        assert (made.finish == "stop") == (rewards.count(pytest.approx(1 / 3)) == 3)
    broken = [Request(request.prompt_ids, 1, 7, row={**row, "answer": "high"})]
    with pytest.raises(StepError, match="its answer is no height"):
        wrap_in_environment(Engine(tiny_policy), own, tiny_policy.tokenizer, {}).generate(broken, Sampling(1.0, 90))


@pytest.mark.parametrize("name", ["recipe", "own", "context", "checklist_stage"])
def test_the_recipes_of_the_page_validate(lab, name):
    recipe = yaml.safe_load((ROOT / "recipes/guess.yaml").read_text())
    recipe["stages"]["trained"] |= yaml.safe_load(TEXT[name])
    (lab / "changed.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert load_recipe(lab / "changed.yaml").settings("trained")["env"]["max_turns"] in (3, 6, 8, 12)


def test_the_loss_on_observations_validates(lab):
    recipe = yaml.safe_load((ROOT / "recipes/guess.yaml").read_text())
    recipe["stages"]["trained"] |= yaml.safe_load(TEXT["predicts"])
    (lab / "changed.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    (term,) = load_recipe(lab / "changed.yaml").settings("trained")["loss_terms"]
    assert term["loss_aggregation"]["use"] == "observed_mean"


def test_an_evaluation_of_the_page_compares_context_policies(lab):
    recipe = yaml.safe_load((ROOT / "recipes/guess.yaml").read_text())
    report = recipe["stages"]["report"]
    recipe["stages"]["report"] = report | yaml.safe_load(TEXT["compared"])
    (lab / "changed.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    settings = load_recipe(lab / "changed.yaml").settings("report")
    assert settings["env"]["context"] is None
    assert {name: env["context"]["use"] for name, env in settings["envs"].items()} == {"memory": "memory"}


def test_a_user_context_policy_validates_and_shows_the_first_and_the_last_turn(lab):
    recipe = yaml.safe_load((ROOT / "recipes/guess.yaml").read_text())
    recipe["stages"]["trained"]["env"] = {
        "use": "guess",
        "context": {"use": "my_lab.contexts:first_and_last", "least": 2},
    }
    (lab / "changed.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    use = EnvUse.model_validate(load_recipe(lab / "changed.yaml").settings("trained")["env"]).context
    turns = [PastTurn(f"t{i}", f"o{i}") for i in range(3)]
    shown = bind(use).ask(0, {"prompt": [{"role": "user", "content": "q"}], "turns": turns, "tokens": 9, "row": {}})
    assert [message["content"] for message in shown.messages] == ["q", "t0", "o0", "t2", "o2"]
    recipe["stages"]["trained"]["env"]["context"]["leest"] = 2
    (lab / "changed.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    with pytest.raises(Exception, match="least"):
        load_recipe(lab / "changed.yaml")


def test_a_misspelt_option_of_an_environment_is_found_before_anything_runs(lab):
    recipe = yaml.safe_load((ROOT / "recipes/guess.yaml").read_text())
    recipe["stages"]["trained"]["env"] = {"use": "guess", "higer": "+"}
    (lab / "changed.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    with pytest.raises(Exception, match="higher"):
        load_recipe(lab / "changed.yaml")


def test_what_the_page_names_is_there():
    fields = {"max_turns", "workers", "order", "steps_per_answer", "decode_seconds"}
    here = vars(context_policies).items()
    policies = {n for n, f in here if getattr(f, "__module__", "") == context_policies.__name__ and n[0] != "_"}
    assert {name for name in policies if f"{{use: {name}" in PAGE} == policies
    assert len(policies) == 5
    assert fields <= set(EnvUse.model_fields)
    assert all(f"`{name}" in PAGE for name in fields)
    assert {"env", "max_completion_length"} <= set(Rl.model_fields)


def test_reasons_that_are_written_afterwards_validate(tmp_path):
    rewards = (ROOT / "docs/rewards.md").read_text()
    noted = re.search(r"^```yaml noted\n(.*?)^```$", rewards, re.MULTILINE | re.DOTALL)
    assert noted is not None
    problems = [{"use": "text_games", "size": 9, "split": "train"}]
    stages = {
        "cold_start": {"kind": "init"},
        "games": {"kind": "synthesize", "emit": "prompts", "problems": problems},
        **yaml.safe_load(TEXT["posterior"]),
        "episodes": {"kind": "data", "sources": [{"from": "explored"}]},
        "asked": {"kind": "synthesize", "emit": "prompts", "problems": [{"use": "answered", "data": "episodes"}]},
        "trained": {"kind": "rl", "model": "cold_start", "prompts": "asked", "max_steps": 1} | yaml.safe_load(noted[1]),
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"name": "r", "stages": stages}))
    assert {"explored", "trained"} < set(load_recipe(tmp_path / "r.yaml").steps)
