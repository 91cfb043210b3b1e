"""Whether a plan asks of a champion what the committed recipe asks: its `promote`, its gate, and what the gate judges.

What `--set`, a form of a deployment, an edited file or an edited plan changed there is found in one way: the plan is
compared with the recipe as Git has it, with the same profile. Outside Git it is compared with the file as it lies.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flows.planning.champion_inputs import add_champions
from flows.planning.difference import format_value, list_changes
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.errors import PlanError, RecipeError
from schemas.plan import Plan, Step
from schemas.recipe.load import Recipe, load_recipe
from schemas.source.parser import read_source

UNVERSIONED = "not under version control"
MODEL_PORTS = ("model", "models", "against")
MAX_FILES = 100


@dataclass(frozen=True)
class Committed:
    """The recipe that a promotion asks."""

    recipe: Recipe
    version: str
    """Commit of the recipe's file, or `not under version control`."""
    edited: tuple[str, ...]
    """Its files that differ from that commit."""

    def evidence(self) -> dict[str, object]:
        """What a promotion keeps of it."""
        return {"version": self.version, "digest": digest_of(self.recipe.resolved), "edited": list(self.edited)}


def read_committed_recipe(file: str, profile: str | None, layout: Layout) -> Committed:
    """The recipe of a file as it was committed. Raises PlanError when it is not, or is no valid recipe there."""
    path = next((p for p in (Path(file), layout.root / file) if p.is_file()), None)
    if path is None:
        raise PlanError(f"{file} is not there any more, so what it asks of a champion cannot be known")
    path = path.resolve()
    repository, checkout = _find_repository(path.parent), _find_repository(layout.root.resolve())
    try:
        if repository is None and checkout is None:
            return Committed(load_recipe(path, profile=profile), UNVERSIONED, ())
        if repository is None or checkout not in (None, repository):
            raise PlanError(f"{file} lies outside the repository of this checkout, so it is not committed there")
        return _read_from_commit(path, profile, repository)
    except RecipeError as error:
        raise PlanError(f"{file}, as it is committed, is no valid recipe: {str(error).splitlines()[0]}") from error


def list_promotion_changes(plan: Plan, committed: Committed, layout: Layout) -> list[str]:
    """In what `promote`, its gate and what that judges differ from the committed recipe, one line each."""
    if plan.promotion is None:
        return []
    asked = plan.promotion.model_dump(mode="json")
    wanted = committed.recipe.promotion.model_dump(mode="json") if committed.recipe.promotion else {}
    found = [
        f"promote.{path}: {format_value(old)} → {format_value(new)}" for path, old, new in list_changes(wanted, asked)
    ]
    return found + list_gate_changes(plan, committed, layout, plan.promotion.gates, plan.promotion.models)


def warn_of_changes(plan: Plan, layout: Layout, warn: Callable[[str], None]) -> None:
    """Say before a run that it will promote nothing, for what it asks is not what the committed recipe asks."""
    if plan.promotion is None:
        return
    try:
        found = list_promotion_changes(plan, read_committed_recipe(plan.file, plan.profile, layout), layout)
    except PlanError as error:
        found = [str(error)]
    if found:
        warn(f"this run will promote nothing: not by the committed recipe: {', '.join(found[:3])}")


def list_gate_changes(
    plan: Plan, committed: Committed, layout: Layout, gates: tuple[str, ...], models: tuple[str, ...]
) -> list[str]:
    """In what evaluations, and what they judge `models` by, differ from the committed recipe, one line each."""
    names = sorted(find_deciding_steps(plan, gates, models))
    return [line for name in names for line in _list_step_changes(plan.step(name), committed.recipe, layout)]


def find_deciding_steps(plan: Plan, gates: tuple[str, ...], models: tuple[str, ...]) -> set[str]:
    """The steps that decide what a gate says: the evaluations, their problems, judges and rivals, and what made those.

    What made only the models that are promoted is not among them, for that is what is judged.
    """
    steps = {step.name: step for step in plan.steps}
    judged = _find_ancestors(steps, set(models) & set(steps))
    found: set[str] = set()
    for gate in [steps[name] for name in gates if name in steps]:
        rivals = {n for i in gate.inputs if _is_model(i.port) for n in i.steps}
        others = {n for i in gate.inputs if not _is_model(i.port) for n in i.steps}
        found |= {gate.name} | _find_ancestors(steps, others) | (_find_ancestors(steps, rivals) - judged)
    return found


def _is_model(port: str) -> bool:
    return port.partition(".")[0] in MODEL_PORTS


def _find_ancestors(steps: dict[str, Step], names: set[str]) -> set[str]:
    """Some steps and everything that they are made from."""
    found, waiting = set(), [name for name in names if name in steps]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [source for given in steps[name].inputs for source in given.steps if source in steps]
    return found


def _list_step_changes(step: Step, recipe: Recipe, layout: Layout) -> Iterator[str]:
    if step.name not in recipe.steps:
        yield f"stages.{step.name}: is not in the committed recipe"
        return
    settings = recipe.settings(step.name)
    if settings["kind"] == "evaluate":
        settings, _ = add_champions(recipe, settings, (), layout)
    for path, old, new in list_changes(settings, step.settings):
        yield f"stages.{step.name}.{path}: {format_value(old)} → {format_value(new)}"
    if recipe.seed(step.name) != step.seed:
        yield f"stages.{step.name}.seed: {recipe.seed(step.name)} → {step.seed}"


def _read_from_commit(path: Path, profile: str | None, repository: Path) -> Committed:
    """A recipe at HEAD; its files are laid elsewhere only when one of them was edited."""
    start = path.relative_to(repository).as_posix()
    version = _ask_git(repository, "log", "-1", "--format=%H", "HEAD", "--", start)
    texts: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name in texts:
                continue
            text = _ask_git(repository, "show", f"HEAD:{name}")
            if text is None or version is None or len(texts) >= MAX_FILES:
                raise PlanError(f"{name} is not committed; commit it")
            texts[name] = text
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(text)
            waiting += _list_parents(copy, name)
        edited = tuple(name for name, text in texts.items() if not _is_unchanged(repository / name, text))
        source = Path(folder, start) if edited else path
        recipe = load_recipe(source, profile=profile, home=path.parent)
    assert version is not None  # else the loop has raised
    return Committed(recipe, version.decode().strip(), edited)


def _list_parents(copy: Path, name: str) -> Iterator[str]:
    """What a recipe extends, relative to the repository."""
    listed = read_source(copy, name).get("extends")
    for item in (listed.value if listed.is_list else [listed]) if listed is not None else ():
        place = os.path.normpath(PurePosixPath(name).parent / str(item.value))
        if place.startswith("..") or Path(place).is_absolute():
            raise PlanError(f"{name} extends {item.value}, which lies outside the repository")
        yield place


def _is_unchanged(path: Path, text: bytes) -> bool:
    return path.is_file() and path.read_bytes() == text


def _find_repository(folder: Path) -> Path | None:
    """The repository around a folder; None outside Git. Git itself need not work: then nothing counts as committed."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def _ask_git(folder: Path, *words: str) -> bytes | None:
    """What Git says, not minding variables that would lead it to another repository; None when it says no."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
