"""Compile a recipe into a plan: steps in an order in which they can run, each with its key.

A key is made of what a step does and reads, never of names: renaming a stage reruns nothing.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from flows.planning.adapter_check import verify_adapters
from flows.planning.architecture_check import verify_architectures
from flows.planning.champion_inputs import GateSettings, add_champions
from flows.planning.closure import Closure
from flows.planning.contracts import verify_contracts
from flows.planning.facts_cache import FactsCache
from flows.planning.outside_models import verify_outside_models
from learning.models.model_files import is_multimodal
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.adapter_base import RECORD
from schemas.addresses import MODEL_READERS
from schemas.base import JsonObject
from schemas.endpoint import strip_operation
from schemas.errors import PlanError
from schemas.gates import strip_policy
from schemas.plan import Input, Plan, Step
from schemas.recipe.load import Recipe
from schemas.references import MODEL_TYPES, POLICY_TYPES, ArtifactType
from schemas.steps.step_info import Port
from schemas.suggestions import suggest

IDENTITY_FORMAT = 1
FRESH = "fresh"
"""Field in the identity of a step that is run again: {"run": number of the repetition, "of": its original key}."""


def compile_recipe(recipe: Recipe, layout: Layout) -> Plan:
    """Return the plan of a recipe.

    Raise PlanError if a source is missing or the models of a step do not fit, RecipeError for a source of
    another kind and for adapters of modules that a model lacks.
    """
    known = FactsCache(layout)
    closure = Closure(recipe.folders, known)
    steps: dict[str, Step] = {}
    with _paused_collection():
        for name in recipe.steps:
            steps[name] = _make_step(recipe, name, steps, closure, layout)
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
        notify=tuple(recipe.head.notify),
        track=tuple(recipe.head.track),
    )
    verify_outside_models(recipe, layout)
    verify_contracts(plan, layout, recipe.folders)
    verify_adapters(recipe, plan, layout)
    verify_architectures(recipe, plan, layout)
    return plan


@contextmanager
def _paused_collection() -> Iterator[None]:
    """Pause the garbage collector: syntax trees have no cycles, and searching them takes a tenth of planning."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def select_stages(plan: Plan, names: Iterable[str]) -> Plan:
    """Return the part of a plan that some stages or steps need, themselves included. Raise PlanError for others."""
    wanted: set[str] = set()
    for name in names:
        matching = [s.name for s in plan.steps if name in (s.name, s.stage)]
        if not matching:
            raise PlanError(
                f"no step `{name}` in {plan.recipe}; {suggest(name, [s.name for s in plan.steps], 'steps')}"
            )
        wanted.update(matching)
    if not wanted:
        return plan
    for step in reversed(plan.steps):
        if step.name in wanted:
            wanted.update(step.needs)
    return plan.model_copy(update={"steps": tuple(s for s in plan.steps if s.name in wanted)})


def _make_step(recipe: Recipe, name: str, steps: dict[str, Step], closure: Closure, layout: Layout) -> Step:
    stage = recipe.stages[name]
    settings = recipe.settings(name)
    kind = settings["kind"]
    ports = recipe.ports(name)
    inputs = tuple(_make_input(recipe, port, layout) for port in ports)
    if settings.get("gate"):
        settings, inputs = add_champions(recipe, settings, inputs, layout)
    readers = {MODEL_READERS[form] for given in inputs for form in _list_rare_forms(given, recipe, steps, layout)}
    code = closure.of([(f"tasks.{stage.task_module}", "run"), *recipe.code(name), *sorted(readers)])
    identity = _make_identity(kind, settings, recipe.seed(name), inputs, code, steps)
    return Step(
        name=name,
        stage=recipe.origin(name),
        kind=kind,
        settings=settings,
        seed=recipe.seed(name),
        inputs=inputs,
        after=recipe.after(name),
        unless=recipe.unless(name),
        branch_of=recipe.branch_of(name),
        outputs=cast(dict[str, ArtifactType], recipe.outputs(name)),
        code=code,
        key=digest_of(identity),
        identity=identity,
        resources=stage.resources,
        retries=stage.retries,
        timeout=stage.timeout,
    )


def _make_identity(
    kind: str,
    settings: JsonObject,
    seed: int,
    inputs: tuple[Input, ...],
    code: dict[str, str],
    steps: dict[str, Step],
) -> dict[str, object]:
    """Return what the key of a step is the hash of."""
    return {
        "format": IDENTITY_FORMAT,
        "kind": kind,
        "settings": blank_references(strip_operation(strip_policy(settings)), {given.port for given in inputs}),
        "seed": seed,
        "inputs": {i.port: identify_input(i, steps) for i in inputs},
        "code": code,
    }


def has_own_key(step: Step, plan: Plan) -> bool:
    """Return whether the key of a planned step matches what it does and reads; a plan file may have been edited."""
    steps = {other.name: other for other in plan.steps}
    if any(name not in steps for name in step.needs):
        return False
    fresh = {name: value for name, value in step.identity.items() if name == FRESH}
    whole = _make_identity(step.kind, step.settings, step.seed, step.inputs, step.code, steps) | fresh
    return step.key == digest_of(whole)


def _make_input(recipe: Recipe, port: Port, layout: Layout) -> Input:
    if port.source is not None:
        digest = find_source(port.source, layout, recipe.folders).digest
        return Input(port=port.path, source=port.source, digest=digest, type=cast(ArtifactType, port.type))
    output = port.output or next(iter(recipe.outputs(port.steps[0])))
    return Input(port=port.path, steps=port.steps, output=output, type=cast(ArtifactType, port.type))


def _list_rare_forms(given: Input, recipe: Recipe, steps: dict[str, Step], layout: Layout) -> set[str]:
    """Return the rare forms that models of an input may have, the keys of `MODEL_READERS`.

    Artifacts of steps hold adapters only if the step trains them, over quantised weights only if it has such, whose
    base has the forms of its own inputs, no other GGUF files, and a multimodal model only if the step reads one; the
    user's code may write any.
    """
    if given.source is not None:
        folder = find_source(given.source, layout, recipe.folders).folder
        patterns = {"gguf": "*.gguf", "adapter": "adapter_config.json", "quantised": RECORD}
        forms = {form for form, pattern in patterns.items() if any(folder.rglob(pattern))}
        configs = folder.rglob("config.json")
        return forms | ({"multimodal"} if any(is_multimodal(config.parent) for config in configs) else set())
    stages = [recipe.stages[name] for name in given.steps]
    if any(stage.runs_user_code for stage in stages):
        return set(MODEL_READERS)
    adapting = [name for name in given.steps if "write_adapters" in recipe.stages[name].optional_code()]
    bases = [base for name in adapting for base in steps[name].inputs if base.type in POLICY_TYPES]
    forms = {"adapter"} if adapting else set()
    if any("quantise" in recipe.stages[name].optional_code() for name in adapting):
        forms |= {"quantised"}
    forms = forms.union(*(_list_rare_forms(base, recipe, steps, layout) for base in bases))
    towers, _ = MODEL_READERS["multimodal"]
    kept = given.type in MODEL_TYPES and any(towers in steps[name].code for name in given.steps)
    return forms | ({"multimodal"} if kept else set())


def identify_input(given: Input, steps: dict[str, Step]) -> dict[str, object]:
    """Return what an input adds to the key; after a loop, all iterations and the conditions that choose among them."""
    if given.source is not None:
        return {"digest": given.digest, "type": given.type}
    if len(given.steps) == 1:
        return {"key": steps[given.steps[0]].key, "output": given.output}
    ends = [[[steps[u.step].key, u.metric, u.op, u.value] for u in steps[name].unless] for name in given.steps]
    chosen: dict[str, object] = {
        "keys": [steps[name].key for name in given.steps],
        "output": given.output,
        "unless": ends,
    }
    gates = [sorted(list(c) for c in _find_conditions(name, steps)) for name in given.steps]
    return chosen | ({"gates": gates} if any(gates) else {})


def _find_conditions(name: str, steps: dict[str, Step]) -> set[tuple[str, int, str]]:
    """Return key, gate and outcome of everything that decides whether a step runs, or another in its place."""
    conditions, seen, waiting = set(), {name}, [name]
    while waiting:
        step = steps[waiting.pop()]
        own = {(b.step, b.gate) for b in step.branch_of}
        conditions |= {(steps[evaluation].key, gate, "failed") for evaluation, gate in own}
        for need in step.needs:
            for index, gate in enumerate(list_gates(steps[need])):
                if gate["on_fail"] == "branch" and (need, index) not in own:
                    conditions.add((steps[need].key, index, "passed"))
        before = {source for given in step.inputs for source in given.steps} - seen
        seen |= before
        waiting += before
    return conditions


def list_gates(step: Step) -> list[GateSettings]:
    """Return the gates of a step, as its settings have them; none for kinds without gates."""
    return step.settings.get("gate") or []


def blank_references(value: Any, ports: set[str], path: str = "") -> Any:
    """Return settings with the references at `ports` (dotted paths) blanked: the key has the inputs instead."""
    if path in ports:
        return ""
    if isinstance(value, dict):
        return {k: blank_references(v, ports, f"{path}.{k}" if path else k) for k, v in value.items()}
    if isinstance(value, list):
        return [blank_references(v, ports, f"{path}.{i}") for i, v in enumerate(value)]
    return value
