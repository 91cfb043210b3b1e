"""The models that gates compare with and the stages they branch to, resolved before the graph is checked.

`against: parent | base | <stage>` becomes a port of the evaluation, so that both models answer the same problems; a
model that is in the table already keeps its name. The champion is resolved when the recipe is compiled.
"""

from schemas.errors import Problem, RecipeError
from schemas.expansion.names import resolve_reference, split_reference
from schemas.gates import RELATIVES, Gate
from schemas.plan import BranchOf
from schemas.references import PolicyRef
from schemas.source.tree import join_path, make_error, make_problem
from schemas.source.validation import follow_path
from schemas.stages.evaluate import Evaluate
from schemas.steps.step_info import Port, StepInfo, replace_parts, resolve_steps
from schemas.suggestions import suggest


def resolve_baselines(infos: dict[str, StepInfo], problems: list[Problem]) -> dict[str, StepInfo]:
    """Return the steps with a port for every model that a gate compares with, and branches linked to their gate."""
    done = dict(infos)
    for name, info in infos.items():
        if isinstance(info.stage, Evaluate):
            done[name] = _add_baselines(info, info.stage, infos, problems)
            for index, gate in enumerate(info.stage.gate):
                _mark_branches(done, name, index, gate, problems)
    return done


def _add_baselines(info: StepInfo, stage: Evaluate, infos: dict[str, StepInfo], problems: list[Problem]) -> StepInfo:
    gates, against, ports = list(stage.gate), dict(stage.against), list(info.ports)
    own = set(stage.models) | set(stage.against) | ({"model"} if stage.model else set())
    for index, gate in enumerate(gates):
        if gate.against is None or gate.against in own or gate.against == "champion":
            continue
        try:
            baseline = _find_baseline(info, f"gate.{index}.against", gate, infos)
        except RecipeError as error:
            problems += error.problems
            continue
        same = next((p for p in ports if _is_model(p) and p.content == baseline.content), None)
        word = same.path.partition(".")[2] or "model" if same else _free_name(gate.against, gate, against)
        if same is None:
            against[word] = PolicyRef(baseline.text)
            ports.append(Port(**{**baseline.__dict__, "path": f"against.{word}", "accepts": PolicyRef.accepts}))
        gates[index] = gate.model_copy(update={"against": word})
    completed = stage.model_copy(update={"gate": gates, "against": against})
    return replace_parts(info, stage=completed, ports=tuple(ports))


def _is_model(port: Port) -> bool:
    return port.path == "model" or port.path.startswith(("models.", "against."))


def _free_name(word: str, gate: Gate, names: dict[str, PolicyRef]) -> str:
    """Return a free name for the table, since two gates may compare with the parents of two models."""
    return word if word not in names else f"{word} of {gate.model or 'the last'}"


def _find_baseline(info: StepInfo, where: str, gate: Gate, infos: dict[str, StepInfo]) -> Port:
    """Return the port of the model that a gate compares with. Raise RecipeError."""
    mark, path, word = follow_path(info.node, where).mark, join_path(info.path, where), str(gate.against)
    if word not in RELATIVES or word in info.names:  # a stage of that name takes precedence
        models = [p.path.partition(".")[2] for p in info.ports if p.path.startswith("models.")]
        if ":" not in word and "|" not in word and split_reference(word, info.names) is None:
            names = dict.fromkeys([*models, *RELATIVES, *(n for n in info.names if not n.startswith("previous."))])
            raise make_error(mark, path, f"no model `{word}`", suggest(word, names, "models"))
        resolved = resolve_reference(word, info.names, mark, path)
        kind = "policy" if resolved.source else ""
        return Port(where, word, PolicyRef.accepts, resolved.steps, resolved.output, resolved.source, kind, mark)
    gated = _find_gated(info, gate)
    if gated is None:
        raise make_error(mark, path, f"no model `{gate.model}` in this evaluation", "name one of `models`")
    parent = _find_parent(gated, infos)
    if isinstance(parent, str):
        raise make_error(mark, path, f"`{gated.text}` has no {word}: {parent}", "name the model to compare with")
    while word == "base" and isinstance(above := _find_parent(parent, infos), Port):
        parent = above
    return Port(**{**parent.__dict__, "text": parent.text, "mark": mark})


def _find_gated(info: StepInfo, gate: Gate) -> Port | None:
    models = [p for p in info.ports if p.path == "model" or p.path.startswith("models.")]
    if gate.model is None or (gate.model == "model" and models and models[0].path == "model"):
        return models[-1] if models else None
    return next((p for p in models if p.path == f"models.{gate.model}"), None)


def _find_parent(port: Port, infos: dict[str, StepInfo]) -> Port | str:
    """Return the port that a model was trained from (of a loop: the start of the loop), or why that is unknown."""
    makers = [infos[name] for name in port.steps if name in infos]
    if not makers:
        return "it comes from an outside source"
    if len({maker.origin for maker in makers}) == 1:
        return _find_start(makers[-1])
    starts = [_find_start(maker) for maker in makers]
    same = {s.content for s in starts if isinstance(s, Port)}
    agreed = len(same) == 1 and all(isinstance(s, Port) for s in starts)
    return starts[0] if agreed else "its candidates were trained from different models"


def _find_start(maker: StepInfo) -> Port | str:
    own = {p.path: p for p in maker.ports}
    for path in ("model", "inputs.model", "base_model"):
        if path in own:
            return own[path]
    models = [p.text for p in maker.ports if p.accepts == PolicyRef.accepts]
    if models:
        return f"it was made from several models ({', '.join(dict.fromkeys(models))})"
    return (
        "it was not trained from another model" if not maker.ports else "the input that it was trained from is unknown"
    )


def _mark_branches(done: dict[str, StepInfo], name: str, index: int, gate: Gate, problems: list[Problem]) -> None:
    info = done[name]
    for number, word in enumerate(gate.branch):
        where = f"gate.{index}.branch.{number}"
        mark, path = follow_path(info.node, where).mark, join_path(info.path, where)
        steps = resolve_steps(info, word)
        if not steps:
            advice = suggest(word, [w for w in info.names if not w.startswith("previous.")], "stages")
            problems.append(make_problem(mark, path, f"no stage `{word}`", advice))
        for step in steps:
            if step == name:
                message, advice = (
                    "a gate cannot branch to its own evaluation",
                    "name the stages that follow a failure",
                )
                problems.append(make_problem(mark, path, message, advice))
            elif step in done:
                other = done[step]
                done[step] = replace_parts(other, branch_of=(*other.branch_of, BranchOf(step=name, gate=index)))
