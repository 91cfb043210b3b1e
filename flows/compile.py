"""From a recipe to a plan: steps in an order in which they can run, each with its key. Pure but for reading sources.

A key is made of what a step does and reads, never of names: renaming a stage runs nothing again.
"""

from collections.abc import Iterable
from typing import Any

from flows.planning.challenge import with_champions
from flows.planning.closure import Closure
from flows.planning.contracts import check_contracts
from flows.planning.facts_cache import FactsCache
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.sources import find_source
from schemas.endpoint import without_operation
from schemas.errors import PlanError
from schemas.gates import without_policy
from schemas.graph import Port
from schemas.plan import Input, Plan, Step
from schemas.recipe import Recipe
from schemas.suggestions import suggest

IDENTITY_FORMAT = 1
FRESH = "fresh"
"""In the identity of a step that is done again: {"run": which time, "of": the key that it has otherwise}."""


def compile_recipe(recipe: Recipe, layout: Layout) -> Plan:
    """The plan of a recipe. Raises PlanError when a source is missing or the models of a step do not fit together."""
    known = FactsCache(layout)
    closure = Closure(recipe.folders, known)
    steps: dict[str, Step] = {}
    for name in recipe.steps:
        steps[name] = _step(recipe, name, steps, closure, layout)
    known.save()
    plan = Plan(
        recipe=recipe.name,
        file=recipe.file,
        profile=recipe.profile,
        steps=tuple(steps.values()),
        resolved=recipe.resolved,
        promotion=recipe.promotion,
        budget=recipe.head.budget,
        schedule=recipe.head.schedule,
    )
    check_contracts(plan, layout, recipe.folders)
    return plan


def only(plan: Plan, names: Iterable[str]) -> Plan:
    """The part of a plan that some stages or steps need, themselves included. Raises PlanError for an unknown name."""
    wanted: set[str] = set()
    for name in names:
        found = [s.name for s in plan.steps if name in (s.name, s.stage)]
        if not found:
            raise PlanError(
                f"no step `{name}` in {plan.recipe}; {suggest(name, [s.name for s in plan.steps], 'steps')}"
            )
        wanted.update(found)
    if not wanted:
        return plan
    for step in reversed(plan.steps):
        if step.name in wanted:
            wanted.update(step.needs)
    return plan.model_copy(update={"steps": tuple(s for s in plan.steps if s.name in wanted)})


def _step(recipe: Recipe, name: str, steps: dict[str, Step], closure: Closure, layout: Layout) -> Step:
    stage = recipe.stages[name]
    settings = recipe.settings(name)
    kind = settings["kind"]
    ports = recipe.ports(name)
    inputs = tuple(_input(recipe, port, layout) for port in ports)
    if kind == "evaluate":
        settings, inputs = with_champions(recipe, settings, inputs, layout)
    code = closure.of([(f"tasks.{kind}", "run"), *recipe.code(name)])
    identity = _identity(kind, settings, recipe.seed(name), inputs, code, steps)
    return Step(
        name=name, stage=recipe.origin(name), kind=kind, settings=settings, seed=recipe.seed(name), inputs=inputs,
        after=recipe.after(name), unless=recipe.unless(name), branch_of=recipe.branch_of(name),
        outputs=recipe.outputs(name), code=code, key=digest_of(identity), identity=identity,
        resources=stage.resources, retries=stage.retries, timeout=stage.timeout,
    )  # fmt: skip


def _identity(
    kind: str, settings: dict[str, Any], seed: int, inputs: tuple[Input, ...], code: dict[str, str],
    steps: dict[str, Step],
) -> dict[str, Any]:  # fmt: skip
    """What the key of a step is the hash of."""
    return {
        "format": IDENTITY_FORMAT,
        "kind": kind,
        "settings": nameless(without_operation(without_policy(settings)), {given.port for given in inputs}),
        "seed": seed,
        "inputs": {i.port: identity_of(i, steps) for i in inputs},
        "code": code,
    }


def has_own_key(step: Step, plan: Plan) -> bool:
    """Whether the key of a planned step is that of what it does and reads; a plan in a file may have been edited."""
    steps = {other.name: other for other in plan.steps}
    if any(name not in steps for name in step.needs):
        return False
    fresh = {name: said for name, said in step.identity.items() if name == FRESH}
    whole = _identity(step.kind, step.settings, step.seed, step.inputs, step.code, steps) | fresh
    return step.key == digest_of(whole)


def _input(recipe: Recipe, port: Port, layout: Layout) -> Input:
    if port.source is not None:
        digest = find_source(port.source, layout, recipe.folders).digest
        return Input(port=port.path, source=port.source, digest=digest, type=port.type)
    output = port.output or next(iter(recipe.outputs(port.steps[0])))
    return Input(port=port.path, steps=port.steps, output=output, type=port.type)


def identity_of(given: Input, steps: dict[str, Step]) -> dict[str, Any]:
    """What an input adds to the key. After a loop: all iterations, and the conditions that choose among them."""
    if given.source is not None:
        return {"digest": given.digest, "type": given.type}
    if len(given.steps) == 1:
        return {"key": steps[given.steps[0]].key, "output": given.output}
    ends = [[[steps[u.step].key, u.metric, u.op, u.value] for u in steps[name].unless] for name in given.steps]
    chosen = {"keys": [steps[name].key for name in given.steps], "output": given.output, "unless": ends}
    gates = [sorted(list(c) for c in _conditions(name, steps)) for name in given.steps]
    return chosen | ({"gates": gates} if any(gates) else {})


def _conditions(name: str, steps: dict[str, Step]) -> set[tuple[str, int, str]]:
    """Key, gate and outcome of everything that decides whether a step runs or another in its place."""
    found, seen, waiting = set(), {name}, [name]
    while waiting:
        step = steps[waiting.pop()]
        own = {(b.step, b.gate) for b in step.branch_of}
        found |= {(steps[evaluation].key, gate, "failed") for evaluation, gate in own}
        for need in step.needs:
            for index, gate in enumerate(_gates(steps[need])):
                if gate["on_fail"] == "branch" and (need, index) not in own:
                    found.add((steps[need].key, index, "passed"))
        before = {source for given in step.inputs for source in given.steps} - seen
        seen |= before
        waiting += before
    return found


def _gates(step: Step) -> list[dict[str, Any]]:
    return (step.settings.get("gate") or []) if step.kind == "evaluate" else []


def nameless(value: Any, ports: set[str], path: str = "") -> Any:
    """Settings with every reference at one of `ports` (dotted paths) blanked: the inputs say what it stands for."""
    if path in ports:
        return ""
    if isinstance(value, dict):
        return {k: nameless(v, ports, f"{path}.{k}" if path else k) for k, v in value.items()}
    if isinstance(value, list):
        return [nameless(v, ports, f"{path}.{i}") for i, v in enumerate(value)]
    return value
