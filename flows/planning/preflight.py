"""What a run would refuse before its first step, found without keys: `validate` and `run` give the same errors."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from flows.planning.adapter_check import verify_adapters
from flows.planning.architecture_check import verify_architectures
from flows.planning.contracts import verify_contracts
from flows.planning.data_sources import find_source_problems
from flows.planning.engine_check import find_engine_problems
from flows.planning.gate_families import find_family_problems
from flows.planning.length_check import find_length_problems
from flows.planning.lm_eval_check import verify_lm_eval_tasks
from flows.planning.new_models import find_new_model_problems
from flows.planning.outside_models import REGISTRY, find_outside_model_problems
from flows.planning.own_rewards import find_own_reward_problems
from flows.planning.problem_counts import find_count_problems
from flows.planning.recording_check import find_recording_problems
from flows.planning.row_remarks import find_row_remarks
from flows.planning.training_overlap import find_overlaps
from flows.planning.world_check import find_world_problems
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import PlanError, Problem, RecipeError
from schemas.plan import Input, Plan, Step
from schemas.recipe.load import Recipe
from schemas.references import ArtifactType
from schemas.stages.data import Data
from schemas.steps.step_info import Port


def find_problems(recipe: Recipe, layout: Layout, warn: Callable[[str], None]) -> list[Problem]:
    """Return all problems that a plan would have, except those of champions and registered models.

    Call `warn` with what does not prevent a run.

    Models of steps that have run are judged by their settings, as models that are not made yet.
    """
    problems = find_input_problems(recipe, layout, warn)
    if problems or _reads_registry(recipe):
        return problems
    sketch = sketch_plan(recipe)
    try:
        verify_contracts(sketch, layout, recipe.folders)
        verify_lm_eval_tasks(sketch, layout)
        verify_adapters(recipe, sketch, layout)
        verify_architectures(recipe, sketch, layout)
    except RecipeError as error:
        return list(error.problems)
    except PlanError as error:
        return [Problem(recipe.file, 1, 1, "", str(error))]
    return []


def find_input_problems(recipe: Recipe, layout: Layout, warn: Callable[[str], None]) -> list[Problem]:
    """Return all problems of what a run reads, before its first step.

    They are about sources from outside (missing ones, rows, models), new models, the user's own rewards, and toy tasks
    that are too small. Call `warn` with what does not prevent a run: evaluation problems among training rows, odd rows.
    """
    problems = [*_find_missing(recipe, layout), *find_source_problems(recipe, layout)]
    if not problems:
        problems += find_outside_model_problems(recipe, layout) or find_length_problems(recipe, layout)
        problems += find_family_problems(recipe, layout)
        for is_refused, problem in (*find_overlaps(recipe, layout), *find_row_remarks(recipe, layout)):
            if is_refused:
                problems.append(problem)
            else:
                warn(str(problem))
    problems += [*find_new_model_problems(recipe, layout), *find_own_reward_problems(recipe, layout)]
    problems += [*find_count_problems(recipe, layout), *find_world_problems(recipe)]
    return problems or [*find_recording_problems(recipe)]


def _find_missing(recipe: Recipe, layout: Layout) -> Iterator[Problem]:
    """Yield a problem per source that is not there; those of `data` steps are read by `find_source_problems`."""
    seen: set[tuple[Path, str, str]] = set()
    for name, stage in recipe.stages.items():
        for port in recipe.ports(name):
            if port.source is None or port.source.startswith(REGISTRY) or isinstance(stage, Data):
                continue
            try:
                find_source(port.source, layout, recipe.folders)
            except PlanError as error:
                problem = recipe.steps[name].problem(port.path, str(error))
                place = (Path(problem.file), f"{problem.line}:{problem.column}", problem.message)
                if place not in seen and not port.path.startswith("trained_on."):
                    seen.add(place)
                    yield problem


def _reads_registry(recipe: Recipe) -> bool:
    return any((port.source or "").startswith(REGISTRY) for info in recipe.steps.values() for port in info.ports)


def sketch_plan(recipe: Recipe) -> Plan:
    """Return a plan whose steps have neither code nor keys, so that no step has run."""
    steps = []
    for name in recipe.steps:
        ports, settings = recipe.ports(name), recipe.settings(name)
        step = Step(
            name=name,
            stage=recipe.origin(name),
            kind=settings["kind"],
            settings=settings,
            seed=recipe.seed(name),
            inputs=tuple(_sketch_input(recipe, port) for port in ports),
            outputs=cast(dict[str, ArtifactType], recipe.outputs(name)),
            code={},
            key="",
            identity={},
        )
        steps.append(step)
    return Plan(recipe=recipe.name, file=recipe.file, steps=tuple(steps), resolved={})


def find_missing_packages(recipe: Recipe) -> list[str]:
    """Return why steps that need vLLM or bitsandbytes cannot run on this machine."""
    steps = sketch_plan(recipe).steps
    return find_engine_problems(
        step.model_copy(update={"code": dict.fromkeys((module for module, _ in recipe.code(step.name)), "")})
        for step in steps
    )


def _sketch_input(recipe: Recipe, port: Port) -> Input:
    kind = cast(ArtifactType, port.type)
    if port.source is not None:
        return Input(port=port.path, source=port.source, type=kind)
    output = port.output or next(iter(recipe.outputs(port.steps[0])))
    return Input(port=port.path, steps=port.steps, output=output, type=kind)
