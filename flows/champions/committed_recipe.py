"""Compare a plan with the committed recipe: its `promote`, its gate, and what the gate judges.

One comparison finds what `--set`, a deployment's form, an edited file or an edited plan changed: the plan against the
recipe as Git has it, with the same profile. Outside Git it is compared with the file as it is.
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
    """The recipe that a promotion is checked against."""

    recipe: Recipe
    version: str
    """Commit of the recipe's file, or `not under version control`."""
    edited: tuple[str, ...]
    """Its files that differ from that commit."""

    def evidence(self) -> dict[str, object]:
        """Return what a promotion records of it."""
        return {"version": self.version, "digest": digest_of(self.recipe.resolved), "edited": list(self.edited)}


def read_committed_recipe(file: str, profile: str | None, layout: Layout) -> Committed:
    """Return the recipe of a file as committed. Raise PlanError if it is not committed or not valid there."""
    path = next((p for p in (Path(file), layout.root / file) if p.is_file()), None)
    if path is None:
        raise PlanError(f"{file} no longer exists, so the promotion cannot be checked against it; restore the file")
    path = path.resolve()
    repository, checkout = _find_repository(path.parent), _find_repository(layout.root.resolve())
    try:
        if repository is None and checkout is None:
            return Committed(load_recipe(path, profile=profile), UNVERSIONED, ())
        if repository is None or checkout not in (None, repository):
            raise PlanError(
                f"{file} is outside the repository of this checkout, so it has no committed version to compare with"
            )
        return _read_from_commit(path, profile, repository)
    except RecipeError as error:
        raise PlanError(f"{file}: its committed version is not a valid recipe: {str(error).splitlines()[0]}") from error


def list_promotion_changes(plan: Plan, committed: Committed, layout: Layout) -> list[str]:
    """Return the differences of `promote`, its gate and what that judges from the committed recipe."""
    if plan.promotion is None:
        return []
    planned = plan.promotion.model_dump(mode="json")
    promoted = committed.recipe.promotion.model_dump(mode="json") if committed.recipe.promotion else {}
    differences = [
        f"promote.{path}: {format_value(old)} → {format_value(new)}"
        for path, old, new in list_changes(promoted, planned)
    ]
    return differences + list_gate_changes(plan, committed, layout, plan.promotion.gates, plan.promotion.models)


def warn_of_changes(plan: Plan, layout: Layout, warn: Callable[[str], None]) -> None:
    """Warn before a run that it will promote nothing, because it differs from the committed recipe."""
    if plan.promotion is None:
        return
    try:
        differences = list_promotion_changes(plan, read_committed_recipe(plan.file, plan.profile, layout), layout)
    except PlanError as error:
        differences = [str(error)]
    if differences:
        warn(f"this run will not promote: its settings differ from the committed recipe: {', '.join(differences[:3])}")


def list_gate_changes(
    plan: Plan, committed: Committed, layout: Layout, gates: tuple[str, ...], models: tuple[str, ...]
) -> list[str]:
    """Return the differences of evaluations, and of what they judge `models` by, from the committed recipe."""
    names = sorted(find_deciding_steps(plan, gates, models))
    return [line for name in names for line in _list_step_changes(plan.step(name), committed.recipe, layout)]


def find_deciding_steps(plan: Plan, gates: tuple[str, ...], models: tuple[str, ...]) -> set[str]:
    """Return the steps that decide a gate: evaluations, their problems, judges and rivals, and their ancestors.

    Ancestors of only the promoted models are left out, since those are judged.
    """
    steps = {step.name: step for step in plan.steps}
    judged = _find_ancestors(steps, set(models) & set(steps))
    deciding: set[str] = set()
    for gate in [steps[name] for name in gates if name in steps]:
        rivals = {n for i in gate.inputs if _is_model(i.port) for n in i.steps}
        others = {n for i in gate.inputs if not _is_model(i.port) for n in i.steps}
        deciding |= {gate.name} | _find_ancestors(steps, others) | (_find_ancestors(steps, rivals) - judged)
    return deciding


def _is_model(port: str) -> bool:
    return port.partition(".")[0] in MODEL_PORTS


def _find_ancestors(steps: dict[str, Step], names: set[str]) -> set[str]:
    """Return some steps and everything that they are made from."""
    ancestors, waiting = set(), [name for name in names if name in steps]
    while waiting:
        name = waiting.pop()
        if name not in ancestors:
            ancestors.add(name)
            waiting += [source for step_input in steps[name].inputs for source in step_input.steps if source in steps]
    return ancestors


def _list_step_changes(step: Step, recipe: Recipe, layout: Layout) -> Iterator[str]:
    if step.name not in recipe.steps:
        yield f"stages.{step.name}: is not in the committed recipe"
        return
    settings = recipe.settings(step.name)
    if settings.get("gate"):
        settings, _ = add_champions(recipe, settings, (), layout)
    for path, old, new in list_changes(settings, step.settings):
        yield f"stages.{step.name}.{path}: {format_value(old)} → {format_value(new)}"
    if recipe.seed(step.name) != step.seed:
        yield f"stages.{step.name}.seed: {recipe.seed(step.name)} → {step.seed}"


def _read_from_commit(path: Path, profile: str | None, repository: Path) -> Committed:
    """Return a recipe at HEAD; its files are copied to a temporary folder only if one was edited."""
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
        files = {name: repository / name for name in texts}
        edited = tuple(n for n, file in files.items() if not file.is_file() or file.read_bytes() != texts[n])
        source = Path(folder, start) if edited else path
        recipe = load_recipe(source, profile=profile, home=path.parent)
    assert version is not None  # else the loop has raised
    return Committed(recipe, version.decode().strip(), edited)


def _list_parents(copy: Path, name: str) -> Iterator[str]:
    """Yield what a recipe extends, relative to the repository."""
    listed = read_source(copy, name).get("extends")
    for item in (listed.value if listed.is_list else [listed]) if listed is not None else ():
        place = os.path.normpath(PurePosixPath(name).parent / str(item.value))
        if place.startswith("..") or Path(place).is_absolute():
            raise PlanError(f"{name} extends {item.value}, which is outside the repository")
        yield place


def _find_repository(folder: Path) -> Path | None:
    """Return the repository around a folder, None outside Git; without a working Git nothing counts as committed."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def _ask_git(folder: Path, *words: str) -> bytes | None:
    """Return what Git prints, ignoring variables that point to another repository; None if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
