"""The two stages that a search repeats, copied into it with their functions and inputs, so that its key has them."""

from collections.abc import Mapping
from dataclasses import replace

from schemas.errors import Problem
from schemas.evaluation_slots import TRAINED_ON
from schemas.resources import Resources
from schemas.stages.base import BaseStage
from schemas.stages.control import Control
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_control import EvaluateControl
from schemas.stages.preference import Preference
from schemas.stages.rl import Rl
from schemas.stages.search import Search
from schemas.stages.sft import Sft
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo, replace_parts

TRAININGS, EVALUATIONS = (Sft, Preference, Rl, Control), (Evaluate, EvaluateControl)
OWN = {"description": "", "after": [], "resources": Resources(), "retries": 0, "timeout": None}
"""Settings that a search has itself."""


def add_searched_stages(steps: dict[str, StepInfo], seed: int, problems: list[Problem]) -> dict[str, StepInfo]:
    """Return the complete steps, with the stages that searches name copied into them; add problems.

    The copies have the seeds of their stages, by default the recipe's `seed`: that of the search is the sampler's.
    """
    return {
        name: _add(info, info.stage, steps, seed, problems) if isinstance(info.stage, Search) else info
        for name, info in steps.items()
    }


def _add(info: StepInfo, stage: Search, steps: Mapping[str, StepInfo], seed: int, problems: list[Problem]) -> StepInfo:
    ports = {port.path: port for port in info.ports}
    named = {path: [steps[name] for name in ports[path].steps] for path in ("train", "evaluate")}
    for path, kinds in (("train", TRAININGS), ("evaluate", EVALUATIONS)):
        words = ", ".join(str(kind.model_fields["kind"].annotation.__args__[0]) for kind in kinds)  # pyright: ignore
        if len(named[path]) != 1 or not isinstance(named[path][0].stage, kinds):
            message = f"`{ports[path].text}` is not one stage of a kind that a search can repeat"
            problems.append(info.problem(path, message, f"name a stage without matrix or repeat, of kind {words}"))
            return info
    (trained,), (evaluated,) = named["train"], named["evaluate"]
    model = next((p for p in evaluated.ports if p.path.startswith("models.") and p.steps == (trained.name,)), None)
    if model is None or ports["train"].output not in (None, "model"):
        advice = f"add `{trained.name}: {trained.name}` to `models` of `{evaluated.name}`"
        problems.append(info.problem("evaluate", f"`{evaluated.name}` does not evaluate `{trained.name}`", advice))
        return info
    label = model.path.partition(".")[2]
    kept = (model.path, f"{TRAINED_ON}.{label}.", f"{TRAINED_ON}.policies.")
    alone = {"models": {label: model.text}, "gate": []}
    alone |= {"against": {}} if isinstance(evaluated.stage, Evaluate) else {}
    ports_trained = [replace(port, path=f"trained.{port.path}") for port in trained.ports]
    ports_evaluated = [
        replace(port, path=f"evaluated.{port.path}")
        for port in evaluated.ports
        if not port.path.startswith(("models.", "against.", f"{TRAINED_ON}.")) or port.path.startswith(kept)
    ]
    whole = {"trained": _strip(trained.stage, seed)}
    whole["evaluated"] = _strip(evaluated.stage, seed).model_copy(update=alone)
    slots = [*_move(trained, "trained"), *_move(evaluated, "evaluated")]
    return replace_parts(
        info,
        stage=stage.model_copy(update=whole),
        slots=(*info.slots, *slots),
        ports=(*info.ports, *ports_trained, *ports_evaluated),
    )


def _strip(stage: BaseStage, seed: int) -> BaseStage:
    """Return a stage without what a search sets itself, and with its seed."""
    return stage.model_copy(update={**OWN, "seed": seed if stage.seed is None else stage.seed})


def _move(info: StepInfo, part: str) -> list[Slot]:
    return [Slot(f"{part}.{slot.path}", slot.use, slot.signature, slot.options) for slot in info.slots]
