"""Values that their types allow and nothing can mean are refused at their place, without any heavy library."""

import pytest

from schemas.checks.patterns import repeats_repetition
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RL = """name: a
stages:
  base: {kind: init}
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]
  s: {kind: rl, model: base, prompts: problems, algorithm: grpo, max_steps: 1, rewards: [answers.exact]}
"""


def load(tmp_path, text, *overrides):
    file = tmp_path / "r.yaml"
    file.write_text(text)
    return load_recipe(file, overrides=overrides)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (
            "stages.base.config={model_type: qwen3, hidden_size: many}",
            "stages.base.config.hidden_size",
            "`many` must be a whole number from 1",
        ),
        (
            "stages.base.config={model_type: qwen3, num_hidden_layers: 0}",
            "stages.base.config.num_hidden_layers",
            "must be a whole number from 1",
        ),
        (
            "stages.base.config={model_type: qwen3, hidden_size: true}",
            "stages.base.config.hidden_size",
            "must be a whole number from 1",
        ),
        (
            "stages.base.config={model_type: qwen3, hidden_size: null}",
            "stages.base.config.hidden_size",
            "must be a whole number from 1",
        ),
        ("stages.base.config={model_type: qwen3, dtype: 7}", "stages.base.config.dtype", "not a number type"),
        ("stages.base.config={model_type: [a]}", "stages.base.config.model_type", "a model type must be a string"),
        ("stages.s.temperature=1e308", "stages.s.temperature", "is too large"),
        ("stages.s.temperature=101", "stages.s.temperature", "is too large"),
        ("stages.s.learning_rate=1e300", "stages.s.learning_rate", "is too large"),
        ("stages.s.resources={rollout: {workers: 1000000}}", "stages.s.resources.rollout.workers", "is too large"),
        (
            "stages.s.rewards=[{use: formats.matches, pattern: '(('}]",
            "stages.s.rewards.0.pattern",
            "not a regular expression: missing )",
        ),
        ("stages.s.algorithm={a: 1}", "stages.s.algorithm", "`algorithm` must be a name"),
        ("stages.problems.problems.0.seed=-1", "stages.problems.problems.0.seed", "not -1"),
    ],
)
def test_nonsense_is_refused_at_its_place(tmp_path, text, path, message):
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, RL, text)
    (one,) = caught.value.problems
    assert one.path == path
    assert message in one.message


@pytest.mark.parametrize("condition", ["e.a > 1e999", "e.a > .", "e.a > 1..2", "e.a > ²", "a" * 90_000])
def test_a_condition_compares_with_a_finite_number(tmp_path, condition):
    stages = "{e: {kind: evaluate, model: base, prompts: problems}}"
    loop = f"  l: {{repeat: {{max: 2, until: '{condition}', stages: {stages}}}}}\n"
    with pytest.raises(RecipeError, match="a comparison and a number"):
        load(tmp_path, RL + loop)


def test_a_pattern_that_may_run_for_hours_is_warned_of(tmp_path):
    recipe = load(tmp_path, RL, "stages.s.rewards=[{use: formats.matches, pattern: '(a+)+b'}]")
    (one,) = recipe.warnings
    assert (one.path, "a repetition inside a repetition" in one.message) == ("stages.s.rewards.0.pattern", True)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("(a+)*", True),
        ("(?:x(a*)y){2,}", True),
        ("((ab)*c)+", True),
        (r"(\d+,)*", True),
        ("(a)+b*", False),
        ("(?>a+)*", False),
        ("(a++)*", False),
        (r"(\(*)?", False),
        ("([+*])+", False),
        ("(a{2,3})*", False),
    ],
)
def test_repetitions_of_repetitions_are_found(pattern, found):
    assert repeats_repetition(pattern) is found
