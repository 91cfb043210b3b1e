"""Limits of tokens against those of the models that they are for, as far as the models exist before a run."""

import json
from collections.abc import Iterator
from pathlib import Path

from learning.models.gguf_header import read_context_length
from lineage.artifacts.contract import UNBOUNDED
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.adapter_base import find_plain_base, find_tokenizer_folder
from schemas.errors import PosttrainError, Problem
from schemas.recipe.load import Recipe
from schemas.references import POLICY_TYPES
from schemas.stages.action_values import ActionValues
from schemas.stages.evaluate import Evaluate
from schemas.stages.init import Init
from schemas.stages.merge_search import MergeSearch
from schemas.stages.practice import Practice
from schemas.stages.preference import Preference
from schemas.stages.process_reward_model import ProcessRewardModel
from schemas.stages.reward_model import RewardModel
from schemas.stages.rl import Rl
from schemas.stages.sft import Sft
from schemas.stages.synthesize import Synthesize
from schemas.steps.step_info import StepInfo

REGISTRY = "mlflow:"
"""Scheme of the models that only a plan resolves."""


def find_length_problems(recipe: Recipe, layout: Layout) -> Iterator[Problem]:
    """Yield the steps whose rows or completions may be longer than what their model allows."""
    for info in recipe.steps.values():
        stage = info.stage
        if (
            isinstance(stage, Sft | Preference | RewardModel | ProcessRewardModel | ActionValues)
            and stage.max_length is not None
        ):
            limit = _find_limit(info, recipe, layout)
            if stage.max_length > limit:
                text = f"max_length: {stage.max_length} is more than the {limit} tokens that the model allows"
                yield info.problem("max_length", text, "leave it out: the default is the model's")
        elif isinstance(stage, Rl | Evaluate | MergeSearch | Synthesize | Practice):
            limit = _find_limit(info, recipe, layout)
            if stage.max_completion_length >= limit:
                text = f"completions of {stage.max_completion_length} tokens leave no room for a prompt"
                advice = f"the model's maximum length is {limit}"
                yield info.problem("max_completion_length", text, advice)


def _find_limit(info: StepInfo, recipe: Recipe, layout: Layout) -> int:
    """Return the tokens that each model of a step allows, UNBOUNDED where that is not known."""
    if isinstance(info.stage, Init) and info.stage.model is None:
        return info.stage.max_length
    ports = [port for port in info.ports if port.path == "model" or port.path.startswith("models.")]
    limits: list[int] = []
    for port in ports:
        if port.source is not None and port.type in POLICY_TYPES and not port.source.startswith(REGISTRY):
            limits.append(_read_limit(port.source, recipe, layout))
        limits += [_find_limit(recipe.steps[name], recipe, layout) for name in port.steps]
    return min(limits, default=UNBOUNDED)


def _read_limit(source: str, recipe: Recipe, layout: Layout) -> int:
    """Return the tokens that a model from outside allows by its files."""
    try:
        folder = find_source(source, layout, recipe.folders).folder
        base = find_plain_base(folder)
        if not (base / "config.json").is_file() and (files := sorted(base.glob("*.gguf"))):
            return read_context_length(files[0]) or UNBOUNDED
        config = _read_json(base / "config.json")
        tokenizer = _read_json(find_tokenizer_folder(folder) / "tokenizer_config.json")
    except (PosttrainError, OSError, ValueError):
        return UNBOUNDED  # what is wrong with the model is said elsewhere
    limits = (tokenizer.get("model_max_length"), config.get("max_position_embeddings"), config.get("n_positions"))
    return int(min([limit for limit in limits if isinstance(limit, int | float)], default=UNBOUNDED))


def _read_json(file: Path) -> dict[str, object]:
    content = json.loads(file.read_text()) if file.is_file() else {}
    return content if isinstance(content, dict) else {}
