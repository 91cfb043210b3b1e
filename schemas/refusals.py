"""Combinations that run and silently learn the wrong thing, refused (or warned of) before anything starts."""

from collections.abc import Iterator

from schemas.contradictions import contradictions
from schemas.errors import Problem
from schemas.graph import StepInfo
from schemas.merges import merge_problems
from schemas.nearest import suggest
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
            wrong, odd = contradictions(info, info.stage)
            refused, warned = refused + wrong, warned + odd
        elif isinstance(info.stage, Init) and trains_by_sampling:
            refused += _dropout(info, info.stage)
        elif isinstance(info.stage, Evaluate):
            refused += _gates(info, info.stage)
        elif isinstance(info.stage, Merge):
            refused += merge_problems(info, info.stage)
    return refused, list(dict.fromkeys(warned))


def _at(info: StepInfo, where: str, message: str, advice: str) -> Problem:
    return problem(follow(info.node, where).mark, join(info.path, where), message, advice)


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
