"""All rules for settings that would run and produce a wrong result, applied before a run starts."""

from collections.abc import Iterator
from pathlib import Path

from schemas.checks.contradictions import find_contradictions
from schemas.checks.endpoints import check_endpoints
from schemas.checks.families import check_families
from schemas.checks.gates import check_gates
from schemas.checks.init import check_config, check_tokens
from schemas.checks.merge_searches import check_merge_search
from schemas.checks.merges import check_merge
from schemas.checks.patterns import check_patterns
from schemas.checks.row_order import check_row_order
from schemas.checks.row_scores import check_row_scores
from schemas.checks.sanity import check_ranges
from schemas.checks.saved_states import check_saved_states
from schemas.checks.searches import check_search
from schemas.checks.training import check_learning_rate, check_training
from schemas.checks.unused import find_unused_settings
from schemas.checks.unusual import find_unusual_values
from schemas.errors import Problem
from schemas.source.limits import MAX_PROBLEMS
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.stages.init import Init
from schemas.stages.merge import Merge
from schemas.stages.merge_search import MergeSearch
from schemas.stages.rl import Rl
from schemas.stages.search import Search
from schemas.steps.step_info import StepInfo
from schemas.training import Training


def find_refusals(steps: dict[str, StepInfo], folders: tuple[Path, ...]) -> tuple[list[Problem], list[Problem]]:
    """Return the problems that refuse a recipe, and those that only warn; the user's code is in `folders`."""
    refused: list[Problem] = []
    warned: list[Problem] = []
    trains_by_sampling = any(isinstance(i.stage, Rl) for i in steps.values())
    for info in steps.values():
        if len(refused) > MAX_PROBLEMS:
            break
        refused += [*check_endpoints(info), *check_ranges(info), *check_families(info), *check_row_order(info, steps)]
        refused += [*check_row_scores(info), *find_unused_settings(info), *check_saved_states(info, folders)]
        warned += find_unusual_values(info)
        if isinstance(info.stage, Training):
            refused += check_training(info, info.stage)
            warned += check_learning_rate(info, info.stage, steps)
        if isinstance(info.stage, Rl):
            wrong, odd = find_contradictions(info, info.stage)
            refused, warned = refused + wrong, warned + odd
        elif isinstance(info.stage, Init):
            refused += [
                *check_config(info, info.stage),
                *check_tokens(info, info.stage),
                *(_check_dropout(info, info.stage) if trains_by_sampling else ()),
            ]
        elif isinstance(info.stage, Evaluate | EvaluateRewards):
            refused += check_gates(info, info.stage)
        elif isinstance(info.stage, Merge):
            refused += check_merge(info, info.stage)
        elif isinstance(info.stage, MergeSearch):
            refused += check_merge_search(info, info.stage, steps)
        elif isinstance(info.stage, Search):
            refused += check_search(info, info.stage, steps)
    wrong, odd = check_patterns(steps.values())
    return refused + wrong, list(dict.fromkeys(warned + odd))


def _check_dropout(info: StepInfo, stage: Init) -> Iterator[Problem]:
    for key, value in stage.config.items():
        if key.endswith(("dropout", "pdrop")) and isinstance(value, int | float) and value > 0:
            message = "dropout would make the trained policy differ from the sampled one"
            yield info.problem(f"config.{key}", message, f"write `{key}: 0.0`, because this recipe has an rl stage")
