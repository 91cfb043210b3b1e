"""`promote:` of a recipe: the model that becomes champion, and the evaluation whose gates it must pass."""

from collections.abc import Iterator, Mapping

from pydantic import Field

from schemas.base import Schema
from schemas.errors import Problem, RecipeError
from schemas.expansion.names import resolve_reference
from schemas.plan import Promotion
from schemas.references import POLICY_TYPES
from schemas.source.tree import Node, make_error, make_problem
from schemas.stages.evaluate import Evaluate
from schemas.steps.step_info import Port, StepInfo
from schemas.suggestions import suggest


class Promote(Schema):
    """After a run in which all gates passed, the alias `champion` moves to the model."""

    model: str = Field(min_length=1)
    """Stage that makes the model, or one of its named outputs."""
    gate: str = Field(min_length=1)
    """Evaluate stage with a gate on that model."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    """Registered model in MLflow, read as `mlflow:NAME@champion`; null: the recipe's name."""


def resolve_promotion(
    node: Node, promote: Promote, recipe: str, steps: Mapping[str, StepInfo], problems: list[Problem]
) -> Promotion | None:
    """Resolve `promote`; return None and add problems if it is invalid."""
    try:
        models, output = _resolve_steps("model", promote.model, node, steps)
        gates, rest = _resolve_steps("gate", promote.gate, node, steps)
    except RecipeError as error:
        problems += error.problems
        return None
    outputs = dict(steps[models[0]].outputs)
    output = output or next((name for name, kind in outputs.items() if kind in POLICY_TYPES), next(iter(outputs)))
    wrong = [*_check_model(promote, node, outputs, output), *_check_gate(promote, node, gates, rest, steps)]
    wrong = wrong or list(_check_judged(promote, node, (models, output), gates, steps))
    problems += wrong
    return None if wrong else Promotion(name=promote.name or recipe, models=models, output=output, gates=gates)


def _resolve_steps(
    key: str, text: str, node: Node, steps: Mapping[str, StepInfo]
) -> tuple[tuple[str, ...], str | None]:
    """Return the steps that a word may mean, latest first, and the output behind it. Raise RecipeError."""
    infos = list(steps.values())
    names = next((info.names for info in infos if "." not in info.origin), infos[0].names)
    mark, path = (node.get(key) or node).mark, f"promote.{key}"
    resolved = resolve_reference(text, names, mark, path)
    if resolved.source:
        raise make_error(
            mark, path, f"`{text}` comes from outside", "only what a stage of this recipe makes is promoted"
        )
    return resolved.steps, resolved.output


def _check_model(promote: Promote, node: Node, outputs: Mapping[str, str], output: str) -> Iterator[Problem]:
    if output not in outputs:
        advice = suggest(output, outputs, "outputs")
        yield _make_problem(node, "model", f"`{promote.model}`: this stage has no output `{output}`", advice)
    elif outputs[output] not in POLICY_TYPES:
        message = f"wants {' or '.join(POLICY_TYPES)}, but `{promote.model}` is {outputs[output]}"
        yield _make_problem(node, "model", message, "name the stage that makes the model")


def _check_gate(
    promote: Promote, node: Node, gates: tuple[str, ...], rest: str | None, steps: Mapping[str, StepInfo]
) -> Iterator[Problem]:
    stage = steps[gates[0]].stage
    evaluations = [info.origin for info in steps.values() if isinstance(info.stage, Evaluate) and info.stage.gate]
    if not isinstance(stage, Evaluate) or rest:
        advice = suggest(promote.gate, dict.fromkeys(evaluations), "evaluate stages with gates")
        yield _make_problem(node, "gate", f"`{promote.gate}` is no evaluate stage", advice)
    elif not stage.gate:
        advice = f"give `{promote.gate}` a gate, as `gate: {{metric: accuracy, min: 0.8}}`"
        yield _make_problem(node, "gate", f"`{promote.gate}` has no gate: only what passed one is promoted", advice)


def _check_judged(
    promote: Promote,
    node: Node,
    model: tuple[tuple[str, ...], str],
    gates: tuple[str, ...],
    steps: Mapping[str, StepInfo],
) -> Iterator[Problem]:
    info = steps[gates[0]]
    names = [_model_name(port) for port in _list_model_ports(info)]
    own_names = [
        _model_name(p)
        for p in _list_model_ports(info)
        if set(p.steps) & set(model[0]) and _output_name(p, steps) == model[1]
    ]
    if not own_names:
        advice = f"it evaluates: {', '.join(p.text for p in _list_model_ports(info))}"
        yield _make_problem(node, "model", f"`{promote.gate}` does not evaluate `{promote.model}`", advice)
        return
    gates_of_stage = info.stage.gate if isinstance(info.stage, Evaluate) else []
    judged = [gate.model or names[-1] for gate in gates_of_stage]
    if not set(own_names) & set(judged):
        message = f"no gate of `{promote.gate}` is on `{own_names[0]}`; they are on {', '.join(dict.fromkeys(judged))}"
        yield _make_problem(node, "gate", message, f"write `model: {own_names[0]}` in a gate there")


def _list_model_ports(info: StepInfo) -> list[Port]:
    return [port for port in info.ports if port.path == "model" or port.path.startswith("models.")]


def _model_name(port: Port) -> str:
    return port.path.removeprefix("models.")


def _output_name(port: Port, steps: Mapping[str, StepInfo]) -> str:
    return port.output or next(name for name, _ in steps[port.steps[0]].outputs)


def _make_problem(node: Node, key: str, message: str, advice: str) -> Problem:
    return make_problem((node.get(key) or node).mark, f"promote.{key}", message, advice)
