"""Combinations that run and silently learn the wrong thing, refused (or warned of) before anything starts."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.graph import StepInfo
from schemas.merges import merge_problems
from schemas.nearest import suggest
from schemas.slots import Slot
from schemas.stages.evaluate import Evaluate
from schemas.stages.init import Init
from schemas.stages.merge import Merge
from schemas.stages.rl import Rl
from schemas.tree import join, problem
from schemas.validation import follow


def refusals(steps: dict[str, StepInfo]) -> tuple[list[Problem], list[Problem]]:
    """What must not run, and what is only worth a word."""
    refused: list[Problem] = []
    warned: list[Problem] = []
    trains_by_sampling = any(isinstance(i.stage, Rl) for i in steps.values())
    for info in steps.values():
        if isinstance(info.stage, Rl):
            refused += _baselines(info, info.stage)
            refused += _gradients(info)
            warned += _off_policy(info, info.stage)
            warned += _wide_clip(info)
        elif isinstance(info.stage, Init) and trains_by_sampling:
            refused += _dropout(info, info.stage)
        elif isinstance(info.stage, Evaluate):
            refused += _gates(info, info.stage)
        elif isinstance(info.stage, Merge):
            refused += merge_problems(info, info.stage)
    return refused, list(dict.fromkeys(warned))


def _at(info: StepInfo, where: str, message: str, advice: str) -> Problem:
    return problem(follow(info.node, where).mark, join(info.path, where), message, advice)


def _slots(info: StepInfo, field: str) -> Iterator[Slot]:
    return (s for s in info.slots if s.path == field or s.path.rpartition(".")[0] == field)


def _baselines(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if stage.num_generations > 1:
        return
    for slot in _slots(info, "advantage"):
        if slot.values.get("by") == "group":
            said = f"`{slot.use.use}` by group with one completion per prompt makes every advantage 0"
            yield _at(info, slot.path, said, "raise `num_generations`, or write `by: batch`")


def _gradients(info: StepInfo) -> Iterator[Problem]:
    for slot in _slots(info, "components"):
        if slot.values.get("estimator") == "k1" and not slot.values.get("importance"):
            said = "the gradient of the estimator k1 is 0 on average: as a term of the loss it does nothing"
            yield _at(info, join(slot.path, "estimator"), said, "use k2 or k3")


def _off_policy(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if stage.num_iterations * stage.num_mini_batches == 1:
        return
    for slot in _slots(info, "components"):
        if slot.values.get("estimator") in ("k2", "k3") and slot.values.get("importance") is False:
            said = "several updates per batch, and this estimate is not weighted by the ratio: it is biased"
            yield _at(info, slot.path, said, "write `importance: true`")


def _wide_clip(info: StepInfo) -> Iterator[Problem]:
    if not any("path_T" in slot.signature.supplied for slot in _slots(info, "ratio")):
        return
    for slot in _slots(info, "surrogate"):
        epsilon = slot.values.get("epsilon")
        if isinstance(epsilon, float) and epsilon > 0.05:
            said = f"epsilon {epsilon} with a ratio per sequence: such ratios stay near 1 and are never clipped"
            yield _at(info, join(slot.path, "epsilon"), said, "GSPO uses 3e-4 and 4e-4")


def _dropout(info: StepInfo, stage: Init) -> Iterator[Problem]:
    for key, value in stage.config.items():
        if key.endswith(("dropout", "pdrop")) and isinstance(value, int | float) and value > 0:
            said = "dropout in a policy: what is trained would not be what sampled"
            yield _at(info, f"config.{key}", said, f"write `{key}: 0.0`, as this recipe has an rl stage")


def _gates(info: StepInfo, stage: Evaluate) -> Iterator[Problem]:
    metrics = [_label(m) for m in info.dump()["metrics"]]
    models = list(stage.models) or ["model"]
    for index, gate in enumerate(stage.gate):
        here = f"gate.{index}"
        if gate.metric not in metrics:
            advice = suggest(gate.metric, metrics, "metrics of this stage")
            yield _at(info, f"{here}.metric", f"no metric `{gate.metric}`", advice)
        for field, name in (("model", gate.model), ("against", gate.against)):
            if name is not None and name not in models:
                advice = suggest(name, models, "models of this stage")
                yield _at(info, f"{here}.{field}", f"no model `{name}`", advice)
        if gate.against is not None and gate.against == (gate.model or models[-1]):
            yield _at(info, f"{here}.against", f"`{gate.against}` is compared with itself", "name another model")


def _label(metric: dict[str, object]) -> str:
    """A metric's name in tables and gates: function and options, as `pass_at_4`."""
    name = str(metric["use"]).replace(":", ".").rpartition(".")[2]
    return "_".join([name, *(str(value) for key, value in metric.items() if key != "use")])
