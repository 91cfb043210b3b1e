"""`recipe.lock`: everything a recipe's results depend on, and the drift from it.

The lock lies next to the recipe. It holds outside sources by commit or digest, judges and teachers, the settings of
every step, the code in use, Python and every needed package. Two locks of one state are byte for byte equal: they hold
no time, no machine and no random order. `models` is for readers: settings and sources hold the same.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import yaml

from flows.planning.compile import compile_recipe, list_gates
from flows.planning.difference import format_value, list_changes, list_code_changes
from lineage.artifacts.provenance import find_needed_packages
from lineage.layout import Layout
from lineage.sources.resolve import pin_source
from schemas.atomic_write import write_text_atomically
from schemas.base import JsonObject
from schemas.errors import PlanError
from schemas.plan import Plan, Step
from schemas.recipe.load import load_recipe
from schemas.references import MODEL_TYPES

VERSION = 2
HEAD = "# The state to which `posttrain run --locked {name}` pins this recipe; written by `posttrain lock`.\n"
SECTIONS = ("sources", "models", "steps", "code", "packages")
SHORT = 16
"""Number of characters of digests and commits in messages."""
EMBEDDED = "torch"
"""The engine whose code is part of posttrain."""
OWN = ("model", "models")
"""Ports of the models that a stage trains or evaluates; models at other ports judge, teach or guide."""


class LockedStep(TypedDict):
    """One step in a lock."""

    key: str | None
    kind: str
    seed: int
    settings: JsonObject


class Lock(TypedDict):
    """The content of a lock file."""

    lock_version: int
    recipe: str
    profile: str | None
    seed: int
    promote: dict[str, object] | None
    sources: dict[str, dict[str, str]]
    models: dict[str, str | JsonObject]
    steps: dict[str, LockedStep]
    code: dict[str, str]
    python: str
    packages: dict[str, str]
    end: bool


Section = Literal["sources", "steps", "packages"]


class _PlainDumper(yaml.SafeDumper):
    """A YAML dumper that repeats values instead of using anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never use an anchor."""
        return True


def lock_path(recipe: Path | str) -> Path:
    """Return the path of the lock of a recipe: `recipe.lock` next to `recipe.yaml`."""
    return Path(recipe).with_suffix(".lock")


def make_lock(plan: Plan, layout: Layout, folders: tuple[Path, ...]) -> Lock:
    """Return what the plan's results depend on now. Raise PlanError if a source is gone."""
    plan = remove_floating(plan)
    sources = {i.source: i.digest or "" for step in plan.steps for i in step.inputs if i.source is not None}
    code = {module: digest for step in plan.steps for module, digest in step.code.items()}
    return {
        "lock_version": VERSION,
        "recipe": plan.recipe,
        "profile": plan.profile,
        "seed": plan.resolved["seed"],
        "promote": plan.promotion.model_dump(mode="json") if plan.promotion else None,
        "sources": {name: pin_source(name, sources[name], layout, folders) for name in sorted(sources)},
        "models": {path: model for step in plan.steps for path, model in _list_helpers(step)},
        "steps": {
            step.name: {"key": step.key or None, "kind": step.kind, "seed": step.seed, "settings": step.settings}
            for step in plan.steps
        },
        "code": dict(sorted(code.items())),
        "python": platform.python_version(),
        "packages": find_needed_packages(),
        "end": True,
    }


def remove_floating(plan: Plan) -> Plan:
    """Return the plan as a lock sees it: without champions of `floating` gates and the keys that follow from them."""
    made: dict[str, Step] = {}
    for step in plan.steps:
        if any(gate.get("floating") for gate in list_gates(step)):
            step = _remove_floating_champions(step)
        elif any(not made[name].key for name in step.needs if name in made):
            step = step.model_copy(update={"key": ""})
        made[step.name] = step
    return plan.model_copy(update={"steps": tuple(made.values())})


def _remove_floating_champions(step: Step) -> Step:
    """Return an evaluation whose floating gates compare with `champion` by that name, whichever it is."""
    gates, against = list_gates(step), step.settings["against"]
    pinned = {gate["against"] for gate in gates if not gate["floating"]}
    words = {gate["against"] for gate in gates if gate["floating"]} - pinned
    settings = step.settings | {
        "gate": [g | {"against": "champion"} if g["against"] in words else g for g in gates],
        "against": {word: source for word, source in against.items() if word not in words},
    }
    inputs = tuple(i for i in step.inputs if i.port.removeprefix("against.") not in words)
    return step.model_copy(update={"settings": settings, "inputs": inputs, "key": ""})


def _list_helpers(step: Step) -> Iterator[tuple[str, str | JsonObject]]:
    """Yield judges, teachers and remote engines by dotted path: models other than the step's own."""
    for step_input in step.inputs:
        if step_input.type in MODEL_TYPES and step_input.port.partition(".")[0] not in OWN:
            yield f"{step.name}.{step_input.port}", step_input.source or step_input.steps[0]
    for slot in ("teacher", "engine"):
        if (use := step.settings.get(slot)) and use["use"] != EMBEDDED:
            yield f"{step.name}.{slot}", use


def lock_recipe(
    path: Path | str,
    layout: Layout,
    *,
    profile: str | None = None,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[str]:
    """Write a recipe's lock; yield what it pins and what changed since the last. Raise RecipeError or PlanError."""
    recipe = load_recipe(path, profile=profile, overrides=tuple(overrides))
    for problem in recipe.warnings:
        warn(str(problem))
    plan, file = compile_recipe(recipe, layout), lock_path(path)
    now = make_lock(plan, layout, recipe.folders)
    before = read_lock(file) if file.is_file() else None
    _write_lock(file, Path(path).name, now)
    for name, pinned in now["sources"].items():
        yield f"{name}: {', '.join(f'{what} {value}' for what, value in pinned.items())}"
    for name, model in now["models"].items():
        yield f"{name}: {model if isinstance(model, str) else model['use']}"
    for line in list_drift(before, now) if before else ():
        yield f"changed since the last lock: {line}"
    yield f"{file}: {len(now['steps'])} steps, {len(now['code'])} modules, {len(now['packages'])} packages"


def _write_lock(file: Path, recipe: str, lock: Lock) -> None:
    text = yaml.dump(lock, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=120)
    try:
        write_text_atomically(file, HEAD.format(name=recipe) + text)
    except OSError as error:
        raise PlanError(f"{file} cannot be written: {error.strerror}") from error


def verify_lock(plan: Plan, layout: Layout, folders: tuple[Path, ...]) -> None:
    """Raise PlanError with every difference of a plan from its recipe's lock."""
    file = lock_path(plan.file)
    wrong = list(list_drift(read_lock(file), make_lock(plan, layout, folders)))
    if wrong:
        lines = "\n".join(f"    {line}" for line in wrong)
        command = " ".join(["posttrain lock", plan.file, *([f"--profile {plan.profile}"] if plan.profile else [])])
        raise PlanError(
            f"{plan.file} has drifted from {file}:\n{lines}\nto accept the changes, lock it again: {command}"
        )


def read_lock(file: Path) -> Lock:
    """Return a lock. Raise PlanError if it is missing, cut off, of another version or not a lock."""
    again = f"write it again: posttrain lock {file.with_suffix('.yaml')}"
    try:
        lock = yaml.safe_load(file.read_text())
    except FileNotFoundError as error:
        recipe = file.with_suffix(".yaml")
        raise PlanError(f"{file}: no such lock; write it: posttrain lock {recipe}") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PlanError(f"{file}: not a lock: {reason}; {again}") from error
    if not isinstance(lock, dict) or lock.get("lock_version") != VERSION:
        raise PlanError(f"{file}: not a lock of version {VERSION}; {again}")
    if lock.get("end") is not True:
        raise PlanError(f"{file}: not a lock: the end of the file is missing; {again}")
    wrong = [name for name in SECTIONS if not isinstance(lock.get(name), dict)]
    wrong = wrong or [f"steps.{name}" for name, step in lock["steps"].items() if not _is_step(step)]
    if wrong:
        raise PlanError(f"{file}: not a lock: {wrong[0]} is not what `posttrain lock` writes; {again}")
    return cast(Lock, lock)  # its sections and steps were checked


def _is_step(value: Any) -> bool:
    facts = {"kind", "seed", "settings", "key"}
    return isinstance(value, dict) and facts <= value.keys() and isinstance(value["settings"], dict)


def list_drift(lock: Lock, now: Lock) -> list[str]:
    """Return every difference from a lock once, as `package numpy: 2.1 → 2.2`."""
    drifted = list(_list_fields(lock, now))
    keys = [name for name, step in now["steps"].items() if lock["steps"].get(name, {}).get("key") != step["key"]]
    if keys and not drifted:  # a lock that was edited, or an identity of another format
        return [f"keys of {', '.join(keys)}: not those of the lock"]
    return drifted


def _list_fields(lock: Lock, now: Lock) -> Iterator[str]:
    for what in ("recipe", "profile", "seed", "python"):
        if lock.get(what) != now[what]:
            yield f"{what}: {format_value(lock.get(what))} → {format_value(now[what])}"
    for path, old, new in list_changes(lock.get("promote"), now["promote"], "promote"):
        yield f"{path}: {format_value(old)} → {format_value(new)}"
    for name, before, after in _pair_entries(lock, now, "sources"):
        for what, old, new in list_changes(before, after) if isinstance(before, dict) and after else ():
            yield f"{name}: {what} {str(old)[:SHORT]} → {str(new)[:SHORT]}"
    for name, before, after in _pair_entries(lock, now, "steps"):
        follows = before and after and (before["seed"], after["seed"]) == (lock.get("seed"), now["seed"])
        yield from _list_step_drift(name, before, after, () if follows else ("seed",))
    yield from list_code_changes(lock.get("code", {}), now["code"])
    for name, before, after in _pair_entries(lock, now, "packages"):
        if before != after:
            yield f"package {name}: {before or 'not installed'} → {after or 'not installed'}"


def _pair_entries(lock: Lock, now: Lock, section: Section) -> Iterator[tuple[str, Any, Any]]:
    before, after = lock.get(section, {}), now[section]
    for name in sorted({*before, *after}, key=str):
        yield name, before.get(name), after.get(name)


def _list_step_drift(
    name: str, before: LockedStep | None, now: LockedStep | None, facts: tuple[str, ...]
) -> Iterator[str]:
    if before is None or now is None:
        yield f"step {name}: {'is new' if before is None else 'is no longer in the recipe'}"
        return
    for what in ("kind", *facts):
        if before[what] != now[what]:
            yield f"stages.{name}.{what}: {format_value(before[what])} → {format_value(now[what])}"
    for path, old, new in list_changes(before["settings"], now["settings"]):
        if path != "kind":
            yield f"stages.{name}.{path}: {format_value(old)} → {format_value(new)}"
