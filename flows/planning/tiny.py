"""`--tiny`: the same graph with small models of the same families, few rows, few steps and short texts.

What is derived is put on top of a recipe, as a profile is: the steps have keys of their own.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.planning.stand_in_servers import (
    asks_a_teacher,
    replace_reward_servers,
    replace_servers,
    replace_written_servers,
)
from flows.planning.stand_ins import StandIns
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.base import JsonObject
from schemas.errors import PlanError
from schemas.evaluation_slots import TRAINED_ON
from schemas.expectations import Expectations
from schemas.gates import POLICY, Gate
from schemas.recipe.load import Recipe
from schemas.references import MODEL_TYPES, SCHEMES
from schemas.source.tree import REPLACE
from schemas.stages.base import BaseStage
from schemas.stages.collect import Collect
from schemas.stages.control import Control
from schemas.stages.data import Data
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_control import EvaluateControl
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.stages.init import Init
from schemas.stages.merge import Merge
from schemas.stages.merge_search import MergeSearch
from schemas.stages.rl import Rl
from schemas.stages.search import Search
from schemas.stages.synthesize import Synthesize
from schemas.steps.step_info import Port, StepInfo
from schemas.training import Training

ROWS, STEPS, LENGTH, COMPLETION, PROBLEMS, CANDIDATES = 16, 2, 512, 8, 4, 2
TURN = 64
"""Tokens within which a random model ends some turns."""
WORLD_STEPS, EPISODES = 100, 2
LONGEST = 8192
"""Tokens that a model in place of one from outside can read: prompts are never cut, and may be of characters."""
CHARACTERS = 4
"""Characters per token: models in place of those from outside may read characters, and rows are as long as before."""
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
"""Sizes that configurations of transformers have, and their tiny values."""
USUAL = tuple(name for name in SHAPE if not name.startswith("n_"))
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "qwen3": ("qwen3", USUAL),
    "qwen": ("qwen2", USUAL[:-1]),
    "smollm3": ("smollm3", USUAL[:-1]),
    "gemma-3": ("gemma3_text", USUAL),
    "gemma-2": ("gemma2", USUAL),
    "gemma": ("gemma", USUAL),
    "mixtral": ("mixtral", USUAL[:-1]),
    "mistral": ("mistral", USUAL[:-1]),
    "olmo-2": ("olmo2", USUAL[:-1]),
    "phi-3": ("phi3", USUAL[:-1]),
    "pythia": ("gpt_neox", USUAL[:4]),
    "gpt2": ("gpt2", ("n_embd", "n_layer", "n_head")),
    **dict.fromkeys(("llama", "smollm", "tulu", "vicuna", "yi-", "deepseek-llm"), ("llama", USUAL[:-1])),
}
"""Part of a model's name: its architecture in transformers, and the sizes that this has."""
EIGHT_BIT = "_8bit"
LOOP = ".repeat."
WRITTEN = re.compile(r"stages\.[^.]+(\.repeat\.stages\.[^.]+)?")
"""Where a recipe writes stages, those of loops included."""
ARBITRARY, SMALLEST, LARGE = "arbitrary.from_text", 1e-3, 1e9
"""A reward that differs between any two texts, its weight, and more than any reward."""


def derive_tiny(recipe: Recipe, layout: Layout, *, stand_ins: bool = False) -> JsonObject:
    """Return what is put on top of a recipe; with `stand_ins`, made-up rows in place of data that are not here.

    Raise PlanError for a model whose architecture is unknown.
    """
    made_up = StandIns(recipe, layout) if stand_ins else None
    reads_characters = not any(isinstance(stage, Init) for stage in recipe.stages.values())
    bases: dict[str, str] = {}
    stages: JsonObject = {}
    for name, info in recipe.steps.items():
        if not _is_written(info):
            continue
        over = dict(_shrink(info, made_up, reads_characters))
        if LOOP in info.path:  # what its rounds read is what `first` names, and is made small there
            _place(stages, info.path.split(".")[1:], over)
            continue
        for path, value in replace_reward_servers(info) if made_up is not None else ():
            _set(over, path, value, info)
        for port in info.ports:
            if port.path.partition(".")[0] == TRAINED_ON:
                continue  # rows that an evaluation compares, which no key names
            if port.source is not None and _is_model(port):
                _set(over, port.path, _name_base(port.source, bases, name), info)
            for step in port.steps[:1]:
                if not _is_written(recipe.steps[step]) and isinstance(recipe.steps[step].stage, Data):
                    _set(over, port.path, {REPLACE: True, **_limit_rows(recipe.steps[step], made_up)}, info)
        _place(stages, info.path.split(".")[1:], over)
    for number, (source, base) in enumerate(bases.items()):  # a merge needs models that differ
        stages[base] = {**_make_base(source, recipe, layout), "seed": number}
    head: JsonObject = {"promote": None, "schedule": None, "budget": None, "track": ["mlflow"]}
    if made_up is not None and (local := replace_servers(recipe)):
        head["endpoints"] = local
        stages = replace_written_servers(stages)
    return {"name": f"{recipe.name[:90]}-tiny", **head, "stages": stages}


def _is_model(port: Port) -> bool:
    """Return whether a port receives a model; a port of any artifact does unless it names a folder here."""
    is_folder = port.type == "directory" and str(port.source).startswith("path:")
    return bool(set(port.accepts) & set(MODEL_TYPES)) and not is_folder


def _is_written(info: StepInfo) -> bool:
    """Return whether a step is a stage of its own in the recipe, not written in place of a reference."""
    return info.node.get("kind") is not None and WRITTEN.fullmatch(info.path) is not None


def _place(stages: JsonObject, path: list[str], over: JsonObject) -> None:
    for part in path[:-1]:
        stages = stages.setdefault(part, {})
    stages[path[-1]] = {**stages.get(path[-1], {}), **over}


def _set(over: JsonObject, path: str, value: Any, info: StepInfo) -> None:
    """Set a key below a stage; a list of the recipe is written out whole."""
    *above, last = path.split(".")
    if any(part.isdigit() for part in above):
        place: Any = over.setdefault(above[0], _dump(info.stage)[above[0]])
        for part in above[1:]:
            place = place[int(part)] if part.isdigit() else place[part]
        place[last] = value
        return
    for part in above:
        over = over.setdefault(part, {})
    over[last] = value


def _dump(stage: BaseStage) -> JsonObject:
    """Return a stage as its recipe writes it; the slices of a merge are the layers of tiny models."""
    written = stage.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for piece in written.get("slices", []) if isinstance(stage, Merge) else []:
        for source in piece["sources"]:
            source["layer_range"] = [0, SHAPE["num_hidden_layers"]]
    return written


def _name_base(source: str, bases: dict[str, str], step: str) -> str:
    if source.startswith("mlflow:"):
        raise PlanError(
            f"--tiny: {step} reads {source}, whose architecture is not known; give the recipe a profile instead"
        )
    return bases.setdefault(source, "tiny_base" if not bases else f"tiny_base_{len(bases) + 1}")


def _shrink(info: StepInfo, made_up: StandIns | None, reads_characters: bool) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a stage that make it small."""
    stage = info.stage
    if isinstance(stage, Training):
        yield from {"max_steps": STEPS, "warmup_steps": 0, "save_steps": STEPS, "logging_steps": 1}.items()
        if stage.num_decay_steps is not None:
            yield from {"num_decay_steps": 1, "warmup_ratio": 0.0}.items()
        if stage.bf16 or stage.dtype != "float32":  # on a tiny random model, rounding hides the numbers
            yield from {"bf16": False, "dtype": "float32"}.items()
        if stage.optim.endswith(EIGHT_BIT):
            yield "optim", stage.optim.removesuffix(EIGHT_BIT)
        yield from _shrink_batches(stage, reads_characters)
    if isinstance(stage, Init) and stage.model is None:
        small = {key: min(value, SHAPE[key]) for key, value in stage.config.items() if key in SHAPE}
        sizes = next((names for kind, names in FAMILIES.values() if kind == stage.config.get("model_type")), ())
        yield "config", {REPLACE: True, **{key: SHAPE[key] for key in sizes}, **stage.config, **small}
    if isinstance(stage, Data):
        yield "sources", _limit_rows(info, made_up)["sources"]
    if isinstance(stage, Evaluate | MergeSearch | Rl) or (
        isinstance(stage, Synthesize) and (stage.model is not None or asks_a_teacher(info))
    ):
        yield "max_completion_length", min(stage.max_completion_length, COMPLETION)
    if isinstance(stage, Synthesize):
        problems = [_limit_problems(_use(use)) for use in stage.problems]
        if problems != [_use(use) for use in stage.problems]:
            yield "problems", problems
        asks_stand_in = made_up is not None and asks_a_teacher(info)
        if asks_stand_in or (stage.model is not None and stage.emit != "prompts"):
            yield from _accept_any(stage).items()
        if "env" in stage.search.options:
            yield from _sample_turns(stage).items()
    yield from _shrink_evaluation(stage, made_up)
    yield from _shrink_control(stage)
    if isinstance(stage, Expectations) and stage.expect:
        yield "expect", {REPLACE: True}
    yield "resources", {REPLACE: True}


def _shrink_evaluation(stage: BaseStage, made_up: StandIns | None) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a stage that compares models: few problems, and gates that stop nothing."""
    if isinstance(stage, Evaluate | EvaluateRewards | MergeSearch):
        yield "limit", PROBLEMS
        yield "num_bootstrap", 100
    if isinstance(stage, MergeSearch):
        yield "max_candidates", CANDIDATES
    if isinstance(stage, Evaluate | EvaluateRewards) and stage.gate:
        yield "gate", [_warn_only(gate) for gate in stage.gate]
    if isinstance(stage, Evaluate | MergeSearch) and made_up is not None:
        yield "tasks", [made_up.replace_tasks(_use(use)) for use in stage.tasks]


def _shrink_control(stage: BaseStage) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a stage of control that make it small: few steps and episodes, small networks."""
    if isinstance(stage, Collect | EvaluateControl) and stage.episodes is not None:
        yield "episodes", min(stage.episodes, EPISODES)
    if isinstance(stage, Collect | Control) and stage.environment_steps:
        yield "environment_steps", min(stage.environment_steps, WORLD_STEPS)
    if isinstance(stage, Control):
        if stage.networks.hidden_sizes:  # tables stay tables: planning needs them
            yield "networks", {"hidden_sizes": [SHAPE["hidden_size"]]}
        yield "batch_size", min(stage.batch_size, ROWS)
        yield "rollout_steps", min(stage.rollout_steps, ROWS)
        yield "learning_starts", min(stage.learning_starts, ROWS)
        yield "eval_episodes", 1
        if stage.max_steps is not None:
            yield "max_steps", STEPS
    if isinstance(stage, Search) and stage.max_environment_steps is None:
        yield "trials", min(stage.trials, CANDIDATES)
    elif isinstance(stage, Search):  # as many steps as so many trials: samplers share them out in their own ways
        steps = CANDIDATES * WORLD_STEPS * max(1, len(stage.seeds))
        yield "max_environment_steps", min(stage.max_environment_steps or steps, steps)
    if isinstance(stage, EvaluateControl):
        yield "num_bootstrap", 100
        if stage.gate:
            yield "gate", [_warn_only(gate) for gate in stage.gate]


def _accept_any(stage: Synthesize) -> JsonObject:
    """Return the keys by which a stage keeps samples of a random model or of a stand-in, which earn nothing."""
    rewards = [{"use": use.use, "weight": use.weight, **use.options} for use in stage.rewards]
    arbitrary = {"use": ARBITRARY, "weight": SMALLEST}
    bound = {"min_reward": -LARGE} if stage.emit == "chat" else {"min_margin": SMALLEST * SMALLEST}
    return {"rewards": [*rewards, arbitrary], **bound}


def _sample_turns(stage: Synthesize) -> JsonObject:
    """Return the keys by which a stage samples where it searches in an environment.

    A random model ends no turn within a short limit: none would be carried out. Problems of environments have no
    answers, so that what rewards cannot score is left out.
    """
    rewards = [
        {**use, "optional": True} if use["use"] != ARBITRARY else use for use in _accept_any(stage).get("rewards", [])
    ]
    ends = min(stage.max_completion_length, TURN)
    return {"search": {REPLACE: True, "use": "samples"}, "max_completion_length": ends, "rewards": rewards}


def _warn_only(gate: Gate) -> JsonObject:
    """Return a gate that stops nothing: the numbers of random models mean nothing."""
    written = gate.model_dump(mode="json", exclude_unset=True)
    return {key: value for key, value in written.items() if key not in POLICY} | {"on_fail": "warn"}


def _shrink_batches(stage: Training, reads_characters: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(stage, Rl):
        group = min(stage.num_generations, 4)
        yield from {"num_generations": group, "generation_batch_size": 2 * group, "num_mini_batches": 1}.items()
        if stage.eval_prompts is not None:
            yield "eval_steps", 1
        return
    fields = type(stage).model_fields
    yield "per_device_train_batch_size", 2
    if "gradient_accumulation_steps" in fields:
        yield "gradient_accumulation_steps", 1
    if "long_rows" in fields:
        yield "long_rows", "truncate"
    if (length := getattr(stage, "max_length", None)) is not None:
        yield "max_length", min(length, LENGTH) * (CHARACTERS if reads_characters else 1)
    if getattr(stage, "eval_steps", None):
        yield "eval_steps", 1
    if getattr(stage, "validation_fraction", 0.0):
        yield "validation_fraction", 0.3


def _limit_problems(use: JsonObject) -> JsonObject:
    """Return the use of a problem function with few problems; `of` are problems that it is made of."""
    made_of = {"of": _limit_problems(of)} if isinstance(of := use.get("of"), dict) else {}
    size = use.get("size")
    return {**use, **made_of, **({"size": min(size, ROWS)} if isinstance(size, int) else {})}


def _use(use: Any, **more: Any) -> JsonObject:
    return {"use": use.use, **use.options, **more}


def _limit_rows(info: StepInfo, made_up: StandIns | None) -> JsonObject:
    """Return the sources of a data step with few rows each."""
    stage = info.stage
    assert isinstance(stage, Data)
    written = info.stage.model_dump(mode="json", by_alias=True, exclude_unset=True)
    sources = written["sources"] if isinstance(written["sources"], list) else [written["sources"]]
    sources = [{"from": source} if isinstance(source, str) else source for source in sources]
    if made_up is not None:
        sources = [
            made_up.replace(given, source, stage.emit) for given, source in zip(sources, stage.sources, strict=True)
        ]
    limited = [{**source, "max_rows": min(source.get("max_rows") or ROWS, ROWS)} for source in sources]
    for source in limited:
        if source["from"].partition(":")[0] not in SCHEMES:  # of a random model, some texts are empty
            source["on_bad_row"] = "drop"
    kept = {key: written[key] for key in ("temperature", "on_bad_row") if key in written}
    return {"sources": limited, **kept}


def _make_base(source: str, recipe: Recipe, layout: Layout) -> JsonObject:
    """Return the stage that makes a tiny random model of a model's family, with its own tokenizer if that is here."""
    try:
        folder: Path | None = find_source(source, layout, recipe.folders).folder
    except PlanError:
        folder = None
    if folder is not None and (folder / "config.json").is_file():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        small = {key: value for key, value in SHAPE.items() if isinstance(config.get(key), int)}
        shape = {"model_type": config.get("model_type"), **small}
        return {"kind": "init", "config": shape, "tokenizer": source, "max_length": LONGEST}
    family = next((made for word, made in FAMILIES.items() if word in source.lower()), None)
    if family is None:
        known = ", ".join(dict.fromkeys(made[0] for made in FAMILIES.values()))
        raise PlanError(
            f"--tiny: {source} is not on this machine, and its name tells none of the families {known}; "
            "fetch it, or give the recipe a profile instead"
        )
    shape = {"model_type": family[0], **{key: SHAPE[key] for key in family[1]}, "tie_word_embeddings": True}
    return {"kind": "init", "config": shape, "max_length": LONGEST}
