"""What a recipe's deployment shows in Prefect's UI: name, description, tags and form."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.deployments.deployed_lock import RecipeLock, read_current_lock
from flows.deployments.form import make_form, make_locked_form
from lineage.layout import Layout
from schemas.base import JsonObject
from schemas.errors import PlanError, PosttrainError, Problem, RecipeError
from schemas.package import IMPORT_FOLDER, ROOT
from schemas.recipe.load import Recipe, load_recipe
from schemas.source.files import read_text

TAG = "posttrain"
"""Tag of every deployment of posttrain."""
ENTRYPOINT = "flows/deployments/deployed.py:recipe_run"
PULL = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
"""Where a worker finds the code (in this checkout)."""
LINK = re.compile(r"https?://[^\s,;)\]]+[^\s,;:.)\]]|\barXiv:\s?(\d{4}\.\d{4,5})\b|\b(docs/[\w./-]+\.md)\b")


@dataclass(frozen=True)
class Deployable:
    """A recipe with the content of its deployment."""

    recipe: Recipe
    file: str
    """Path in the deployment's parameters: relative to the checkout, or absolute if it is outside."""
    description: str
    form: JsonObject
    lock: RecipeLock | None = None
    """The lock that it is deployed with; None: it runs the current version of the recipe."""

    @property
    def parameters(self) -> dict[str, str]:
        """Return the parameters of every run of the deployment."""
        return {"recipe": self.file} | ({"locked": self.lock.digest} if self.lock else {})

    @property
    def tags(self) -> list[str]:
        """Return the recipe's own tags, and ours."""
        return list(dict.fromkeys([*self.recipe.head.tags, TAG]))


def list_recipe_files(layout: Layout) -> list[Path]:
    """Return all recipes of a checkout: YAML files below `recipes/` with `stages` or `extends`."""
    recipes = []
    for path in sorted((layout.root / "recipes").rglob("*.yaml")):
        try:
            lines = read_text(path, str(path)).splitlines()
        except RecipeError:  # listed, so that deploying it reports the error
            recipes.append(path)
            continue
        if any(line.startswith(("stages:", "extends:")) for line in lines) and "bases" not in path.parts:
            recipes.append(path)
    return recipes


def make_deployables(
    paths: Iterable[Path], layout: Layout, *, locked: bool = False
) -> tuple[list[Deployable], list[PosttrainError]]:
    """Return what can be deployed, and all errors of the other recipes; two of one name are both refused."""
    good: dict[str, Deployable] = {}
    wrong: list[PosttrainError] = []
    for path in paths:
        try:
            made = make_deployable(path, layout, locked=locked)
        except (RecipeError, PlanError) as error:
            wrong.append(error)
            continue
        other = good.get(made.recipe.name)
        if other is not None and other.file != made.file:
            wrong.append(_refuse_same_name(path, made, other))
            continue
        good[made.recipe.name] = made
    return list(good.values()), wrong


def _refuse_same_name(path: Path, made: Deployable, other: Deployable) -> RecipeError:
    lines = read_text(path, str(path)).splitlines()
    line = next((n for n, text in enumerate(lines, 1) if text.startswith("name:")), 1)
    message = f"{other.file} is called `{made.recipe.name}` as well"
    return RecipeError([Problem(str(path), line, 1, "name", message, "give one of them another name")])


def make_deployable(path: Path, layout: Layout, *, locked: bool = False) -> Deployable:
    """Return a recipe with its form. Raise RecipeError, also for a profile that does not validate.

    `locked`: pinned to its lock. Raise PlanError if there is none, or the recipe has drifted from it.
    """
    recipe = load_recipe(path)
    profiles = list(recipe.head.profiles)
    stages = dict.fromkeys(recipe.origin(name) for name in recipe.steps)
    for profile in profiles:
        variant = load_recipe(path, profile=profile)
        stages |= dict.fromkeys(variant.origin(name) for name in variant.steps)
    inside = path.resolve().is_relative_to(layout.root)
    file = str(path.resolve().relative_to(layout.root) if inside else path.resolve())
    description = describe_recipe(recipe, read_text(path, str(path)))
    if not locked:
        return Deployable(recipe, file, description, make_form(recipe, profiles, list(stages)))
    lock = read_current_lock(path, layout)
    return Deployable(
        recipe, file, description, make_locked_form(make_form(recipe, profiles, list(stages)), file, lock.digest), lock
    )


def describe_recipe(recipe: Recipe, text: str) -> str:
    """Return the recipe's description and, if its header names one, a link to its paper or page (markdown)."""
    header = itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), text.splitlines())
    links = dict.fromkeys(link for line in header if "$schema=" not in line for link in _find_links(line))
    return "\n\n".join(filter(None, [recipe.head.description, *links]))


def _find_links(line: str) -> Iterator[str]:
    for match in LINK.finditer(line):
        if match[1]:
            yield f"[arXiv:{match[1]}](https://arxiv.org/abs/{match[1]})"
        else:
            yield f"`{match[2]}`" if match[2] else f"[{match[0]}]({match[0]})"


def make_environment(layout: Layout) -> dict[str, str]:
    """Return the variables of every flow run: the checkout, and that nothing is installed."""
    return {
        "POSTTRAIN_ROOT": str(layout.root),
        "PYTHONPATH": str(IMPORT_FOLDER),
        "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES": "false",
    }
