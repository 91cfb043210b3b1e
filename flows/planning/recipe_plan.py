"""From a recipe file to the plan of what is to run: `to` some stages, `from` some stages, or all of it `fresh`."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flows.planning.compile import FRESH, compile_recipe, identify_input, select_stages
from flows.planning.engine_check import find_engine_problems
from flows.planning.lm_eval_check import verify_lm_eval_tasks
from flows.planning.locking import verify_lock
from flows.planning.preflight import find_input_problems
from flows.planning.tiny import derive_tiny
from lineage.artifacts.store import Store
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.errors import PlanError, RecipeError
from schemas.plan import Plan, Step
from schemas.recipe.load import load_recipe
from schemas.suggestions import suggest


def plan_recipe(
    path: Path | str,
    layout: Layout,
    *,
    profile: str | None = None,
    overrides: Sequence[str] = (),
    to: Sequence[str] = (),
    start: Sequence[str] = (),
    fresh: bool = False,
    locked: bool = False,
    tiny: bool = False,
    stand_ins: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Compile a recipe, or the part of it that `select_part` returns; call `warn` with what does not prevent a run.

    `locked` holds the recipe to its lock (`flows.planning.locking`); `tiny` makes it small (`flows.planning.tiny`);
    `stand_ins` does so, too, and makes up data that are not on this machine (`flows.planning.stand_ins`).
    Raise RecipeError or PlanError.
    """
    recipe = load_recipe(path, profile=profile, overrides=tuple(overrides))
    if tiny or stand_ins:
        top = derive_tiny(recipe, layout, stand_ins=stand_ins)
        recipe = load_recipe(path, profile=profile, overrides=tuple(overrides), top=top)
    for problem in recipe.warnings:
        warn(str(problem))
    if problems := find_input_problems(recipe, layout, warn):
        raise RecipeError(problems)
    plan = compile_recipe(recipe, layout).model_copy(update={"overrides": tuple(overrides)})
    if locked:
        verify_lock(plan, layout, recipe.folders)
    verify_lm_eval_tasks(plan, layout)
    for text in find_engine_problems(plan.steps):
        warn(text)
    return select_part(plan, layout, to=to, start=start, fresh=fresh)


def select_part(
    plan: Plan, layout: Layout, *, to: Sequence[str] = (), start: Sequence[str] = (), fresh: bool = False
) -> Plan:
    """Return the part of a plan that leads `to` some stages, beginning at the stages `start`.

    With `start`, everything before must exist. `fresh` gives new keys to steps whose artifacts exist: they run again,
    and the earlier artifacts stay. Raise PlanError if a stage is unknown or missing.
    """
    part = select_stages(plan, to)
    again = {step.name for step in part.steps}
    if start:
        again = _add_dependents(part, _find_steps(part, start))
        part = select_stages(part, [step.name for step in part.steps if step.name in again])
        _verify_finished([step for step in part.steps if step.name not in again], start, layout)
    if not fresh:
        return part
    store = Store(layout)
    there = {s.name for s in part.steps if s.name in again and store.find(s.kind, s.key) is not None}
    return _make_fresh(part, there)


def _find_steps(plan: Plan, names: Iterable[str]) -> set[str]:
    wanted: set[str] = set()
    for name in names:
        matching = {s.name for s in plan.steps if name in (s.name, s.stage)}
        if not matching:
            advice = suggest(name, [s.name for s in plan.steps], "steps")
            raise PlanError(f"no step `{name}` to begin at in this part of {plan.recipe}; {advice}")
        wanted |= matching
    return wanted


def _add_dependents(plan: Plan, names: set[str]) -> set[str]:
    """Return the named steps and everything that needs them."""
    reached = set(names)
    for step in plan.steps:
        if reached.intersection(step.needs):
            reached.add(step.name)
    return reached


def _verify_finished(before: list[Step], start: Sequence[str], layout: Layout) -> None:
    store = Store(layout)
    missing = [step.name for step in before if store.find(step.kind, step.key) is None]
    if missing:
        problem = f"cannot begin at {', '.join(start)}: {', '.join(missing)} before it "
        advice = f"run that part first (--to {missing[-1]}), or leave --from out"
        raise PlanError(f"{problem}{'is' if len(missing) == 1 else 'are'} not there; {advice}")


def _make_fresh(plan: Plan, names: set[str]) -> Plan:
    """Return the plan with new keys for some steps and for all that read them."""
    token, made = secrets.token_hex(8), {}
    for step in plan.steps:
        identity = step.identity | {"inputs": {i.port: identify_input(i, made) for i in step.inputs}}
        if step.name in names:
            identity[FRESH] = {"run": token, "of": step.key}
        made[step.name] = step.model_copy(update={"identity": identity, "key": digest_of(identity)})
    return plan.model_copy(update={"steps": tuple(made.values())})


def compare_repeated(steps: Iterable[Step], layout: Layout) -> dict[str, str]:
    """Return, by finished step that ran again, whether it made the same content as the earlier artifact."""
    store, verdicts = Store(layout), {}
    for step in steps:
        now = store.find(step.kind, step.key)
        if FRESH not in step.identity or now is None:
            continue
        before = store.find(step.kind, step.identity[FRESH]["of"])
        if before is None:
            continue
        changed = [name for name, output in now.outputs.items() if before.outputs[name].digest != output.digest]
        verdict = f"other content in {', '.join(changed)} than" if changed else "the same content as"
        verdicts[step.name] = f"{verdict} run {before.run} made"
    return verdicts
