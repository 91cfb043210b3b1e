"""Checks across steps: existing outputs, fitting types, an order in which everything can run."""

import heapq

from schemas.errors import Problem
from schemas.references import STAND_INS
from schemas.source.limits import MAX_PROBLEMS
from schemas.source.tree import join_path, make_problem
from schemas.steps.step_info import Port, StepInfo, replace_parts
from schemas.suggestions import suggest

STATE = ".posttrain"


def check_graph(infos: dict[str, StepInfo], problems: list[Problem]) -> dict[str, StepInfo]:
    """Return the steps in an order in which they can run, with types; what is wrong is added to `problems`."""
    order = _sort_steps(infos, problems)
    if problems:
        return {}
    done: dict[str, StepInfo] = {}
    for name in order:
        if len(problems) > MAX_PROBLEMS:
            break
        info = infos[name]
        ports = tuple(_check_type(p, info, done, problems) for p in info.ports)
        outputs = info.stage.outputs({p.path: p.type for p in ports if p.steps})
        done[name] = replace_parts(info, ports=ports, outputs=tuple(outputs.items()))
    return done


def _sort_steps(infos: dict[str, StepInfo], problems: list[Problem]) -> list[str]:
    """Return the steps in an order in which they can run, as close as possible to the order written."""
    places = {name: place for place, name in enumerate(infos)}
    needs = {name: set(info.needs) for name, info in infos.items()}
    users: dict[str, list[str]] = {}
    for name, needed in needs.items():
        for other in needed:
            users.setdefault(other, []).append(name)
    ready = [places[name] for name, needed in needs.items() if not needed]
    written, order = list(infos), []
    while ready:
        name = written[heapq.heappop(ready)]
        order.append(name)
        for user in users.get(name, ()):
            needs[user].discard(name)
            if not needs[user]:
                heapq.heappush(ready, places[user])
    if len(order) < len(infos):
        done = set(order)
        problems.append(_make_cycle_problem(infos, [name for name in infos if name not in done], done))
        return []
    return order


def _make_cycle_problem(infos: dict[str, StepInfo], waiting: list[str], done: set[str]) -> Problem:
    """Return the problem of a cycle, found by walking upwards from a step that can never start."""
    path = [waiting[0]]
    while path[-1] not in path[:-1]:
        path.append(next(s for s in infos[path[-1]].needs if s not in done))
    circle = path[path.index(path[-1]) :]
    info = infos[circle[0]]
    port = next((p for p in info.ports if circle[1] in p.steps), None)
    mark = port.mark if port else info.node.where
    if len(circle) == 2:
        message = f"`{info.origin}` needs itself"
    else:
        message = f"a cycle: {' -> '.join(circle)} (each needs the next)"
    where = join_path(info.path, port.path) if port else join_path(info.path, "after")
    return make_problem(mark, where, message, "one of these references must go; a loop is written with `repeat`")


def _check_type(port: Port, info: StepInfo, done: dict[str, StepInfo], problems: list[Problem]) -> Port:
    path = join_path(info.path, port.path)
    if not port.steps:
        if _is_own(port.source or ""):
            advice = "name the stage that makes it, so that the order and the key are right"
            problems.append(make_problem(port.mark, path, "a path into the store of artifacts", advice))
        return port
    source = done[port.steps[0]]
    if (odd := _find_odd_candidate(port, done)) is not None:
        differ = f"{_describe_outputs(source)} and {_describe_outputs(odd)}"
        message = f"`{port.text}` is a choice between outputs that differ: {differ}"
        problems.append(
            make_problem(port.mark, path, message, "candidates must make the same thing under the same name")
        )
        return port
    outputs = dict(source.outputs)
    if port.output is not None and port.output not in outputs:
        advice = suggest(port.output, outputs, "outputs")
        problems.append(make_problem(port.mark, path, f"`{source.origin}` has no output `{port.output}`", advice))
        return port
    kind = outputs[port.output] if port.output else next(iter(outputs.values()))
    if kind not in port.accepts:
        types = " or ".join(port.accepts)
        message = f"wants {types}, but `{port.text}` is {kind}"
        problems.append(make_problem(port.mark, path, message, _suggest_fitting(port, source, done)))
    return Port(**{**port.__dict__, "type": kind})


def _find_odd_candidate(port: Port, done: dict[str, StepInfo]) -> StepInfo | None:
    """Return a candidate whose output has another name or type than the first one's."""

    def output(name: str) -> tuple[str, str | None]:
        outputs = done[name].outputs
        return (port.output, dict(outputs).get(port.output)) if port.output else outputs[0]

    return next((done[name] for name in port.steps if output(name) != output(port.steps[0])), None)


def _describe_outputs(info: StepInfo) -> str:
    return ", ".join(f"{info.name}.{output} ({kind})" for output, kind in info.outputs)


def _is_own(source: str) -> bool:
    parts = source.removeprefix("path:").replace("\\", "/").split("/")
    if not source.startswith("path:") or STATE not in parts:
        return False
    return parts[parts.index(STATE) + 1 :][:1] != [STAND_INS]


def _suggest_fitting(port: Port, source: StepInfo, done: dict[str, StepInfo]) -> str:
    own = [f"{port.text.partition('.')[0]}.{o}" for o, kind in source.outputs if kind in port.accepts]
    if own:
        return f"its output `{own[0]}` fits"
    others = [
        _reference_word(i, o, n) for i in done.values() for n, (o, kind) in enumerate(i.outputs) if kind in port.accepts
    ]
    if others:
        return f"these fit: {', '.join(dict.fromkeys(others[:8]))}"
    return f"no stage before it makes {' or '.join(port.accepts)}: add one, or name a source as path:./folder"


def _reference_word(info: StepInfo, output: str, index: int) -> str:
    return info.name if index == 0 else f"{info.name}.{output}"
