"""The rewards of a stage on completions of the model that it starts from: `posttrain test-reward --samples`."""

import math
from pathlib import Path

from flows.planning.compile import compile_recipe
from flows.planning.reward_tests import find_own_code, find_rows, make_score
from learning.data.rows import Row, read_rows
from learning.evaluation.reward_distribution import RewardDistribution, describe_rewards
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import PlanError
from schemas.plan import Plan, Step
from schemas.recipe.load import Recipe
from schemas.stages.rl import Rl
from schemas.stages.synthesize import Synthesize


def sample_rewards(recipe: Recipe, step: str, samples: int, layout: Layout) -> RewardDistribution:
    """Return the distribution of a step's rewards over about `samples` completions of the model that it starts from.

    Each problem gets as many completions as in the step. Raise PlanError for a step that samples in another way, and
    for a model or problems that other steps have still to make.
    """
    info = recipe.steps[step]
    stage = info.stage
    if not isinstance(stage, Rl | Synthesize) or "model" not in {port.path for port in info.ports}:
        raise PlanError(f"{step}: --samples needs a stage of kind rl or synthesize with `model`")
    for key in ("env", "logits_processors"):
        if getattr(stage, key, None):
            raise PlanError(f"{step}: --samples samples plain completions, and this step has `{key}`")
    find_own_code(recipe)
    score, plan = make_score(info), compile_recipe(recipe, layout)
    planned = plan.step(step)
    model = _find_input(planned, "model", plan, layout, recipe)
    if model is None:
        raise PlanError(f"{step}: its model is not made yet; first run: {_describe_run(planned, 'model', recipe)}")
    group = stage.num_generations
    rows = _find_problems(recipe, planned, plan, layout, math.ceil(samples / group))

    from learning.evaluation.sampled_answers import sample_rows  # imports torch
    from learning.generation.engines.torch import Engine
    from learning.generation.replicas.engine_loading import load_sampling_policy
    from learning.models.policy import set_determinism
    from learning.samples.engine_protocol import Sampling

    seed = recipe.seed(step)
    set_determinism(seed, 1)
    policy = load_sampling_policy(model, "cpu", None, stage, stage.dtype)
    kept = stage.kept_tokens if isinstance(stage, Rl) else None
    sampling = Sampling(stage.temperature, stage.max_completion_length, kept_tokens=kept)
    asked = {"n": group, "seed": seed, "sampling": sampling, "on_progress": lambda done, tokens: None}
    answers = sample_rows(Engine(policy), policy.tokenizer, rows, **asked)
    texts = [one.text for of_row in answers for one in of_row]
    scores = score([row for row in rows for _ in range(group)], texts)
    groups = [scores[at : at + group] for at in range(0, len(scores), group)]
    return describe_rewards(groups, sum(one.finish == "length" for of_row in answers for one in of_row))


def _find_input(planned: Step, port: str, plan: Plan, layout: Layout, recipe: Recipe) -> Path | None:
    """Return the folder of what a port reads, None if no step has made it yet."""
    given = next(given for given in planned.inputs if given.port == port)
    if given.source is not None:
        return find_source(given.source, layout, recipe.folders).folder
    for name in given.steps:
        maker = plan.step(name)
        if Store(layout).find(maker.kind, maker.key) is not None:
            return layout.artifact(maker.kind, maker.key) / "outputs" / str(given.output)
    return None


def _find_problems(recipe: Recipe, planned: Step, plan: Plan, layout: Layout, size: int) -> list[Row]:
    rows = find_rows(recipe, layout, planned.name, size)
    if not rows and any(given.port == "prompts" for given in planned.inputs):
        folder = _find_input(planned, "prompts", plan, layout, recipe)
        if folder is None:
            how = _describe_run(planned, "prompts", recipe)
            raise PlanError(f"{planned.name}: its problems are not made yet; first run: {how}")
        rows = read_rows(folder, "prompts")
    return rows[:size]


def _describe_run(planned: Step, port: str, recipe: Recipe) -> str:
    given = next(given for given in planned.inputs if given.port == port)
    return f"posttrain run {recipe.file} --to {given.steps[0]}"
