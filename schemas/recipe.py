"""A recipe: read, expanded and checked; everything wrong with it is found at once."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from schemas.base import Schema
from schemas.budget import MONEY_NEEDS_PRICES, Budget
from schemas.check import check_graph
from schemas.completion import complete_decontamination
from schemas.endpoint import Endpoint
from schemas.endpoint_words import declared_endpoints, with_endpoints
from schemas.errors import Problem, RecipeError
from schemas.expand import Unit, check_defaults, expand
from schemas.extend import read_recipe
from schemas.graph import Port, StepInfo, info_of
from schemas.limits import MAX_PROBLEMS, Allowance
from schemas.modules import bounded_reading
from schemas.opponents import complete_gates
from schemas.plan import BranchOf, Promotion, Until
from schemas.promotion import Promote, promotion
from schemas.refusals import refusals
from schemas.schedule import Schedule, check_schedule
from schemas.stages.base import BaseStage
from schemas.tree import Mark, Node
from schemas.validation import coerced, follow, limited, problems_of
from schemas.variables import Scope, resolve_vars, substitute

SAID = {"name", "description", "tags", "seed", "schedule", "promote", "budget", "endpoints"}
"""Keys of the head in which `${vars.x}` may stand."""
NOT_IN_KEY = {"description", "after", "resources", "retries", "timeout", "seed"}


class Head(Schema):
    """The keys of a recipe beside its stages."""

    schema_version: Literal[1] = 1
    """Version of the language."""
    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")
    """Name of the recipe in runs, MLflow and Prefect; default: the file's."""
    description: str = ""
    """What it is for; said in plans and reports."""
    tags: list[str] = []
    """Words to find it by."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of every stage that has none of its own."""
    vars: dict[str, Any] = {}
    """Values to use as `${vars.name}`."""
    defaults: dict[str, dict[str, Any]] = {}
    """Per kind, keys below those of every stage of the kind."""
    profiles: dict[str, dict[str, Any]] = {}
    """Named overrides of this recipe: `--profile tiny`."""
    schedule: Schedule | None = None
    """When the deployed recipe runs by itself."""
    promote: Promote | None = None
    """Which model becomes champion after a run, and by which gate."""
    budget: Budget | None = None
    """What one run may cost."""
    endpoints: dict[str, Endpoint] = {}
    """Servers with OpenAI's protocol, by the words under which stages name them: `endpoint: teacher`."""
    stages: dict[str, Any] = Field(min_length=1)
    """Name to stage; a stage has a `kind`, or it is a loop with `repeat`."""


@dataclass(frozen=True)
class Recipe:
    """A valid recipe; its steps are the stages after matrix and repeat, in an order in which they can run."""

    file: str
    profile: str | None
    head: Head
    steps: dict[str, StepInfo]
    warnings: tuple[Problem, ...] = ()
    folders: tuple[Path, ...] = field(default=(), compare=False)
    """Where code of the user's own is looked for: the recipe's folder, then the current one."""
    promotion: Promotion | None = None
    """What becomes champion after a run."""

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.head.name

    @property
    def stages(self) -> dict[str, BaseStage]:
        """Step name to its validated stage."""
        return {name: info.stage for name, info in self.steps.items()}

    def origin(self, name: str) -> str:
        """The stage of the recipe that a step comes from: `sft` for `sft@lr=1`, `loop.rl` for `loop-2-rl`."""
        return self.steps[name].origin

    def seed(self, name: str) -> int:
        """Seed of a step."""
        own = self.steps[name].stage.seed
        return self.head.seed if own is None else own

    def ports(self, name: str) -> tuple[Port, ...]:
        """Every reference of a step, resolved."""
        return self.steps[name].ports

    def outputs(self, name: str) -> dict[str, str]:
        """Named outputs of a step and their artifact types, the default first."""
        return dict(self.steps[name].outputs)

    def after(self, name: str) -> tuple[str, ...]:
        """Steps that must finish first although no data comes from them."""
        return self.steps[name].after

    def unless(self, name: str) -> tuple[Until, ...]:
        """Conditions under which a step of a loop is skipped."""
        return self.steps[name].unless

    def branch_of(self, name: str) -> tuple[BranchOf, ...]:
        """Gates that branch to a step."""
        return self.steps[name].branch_of

    def code(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return module and name of every function that a step's slots and optional parts use, sorted."""
        info = self.steps[name]
        optional = info.stage.optional_code.values()
        return tuple(sorted({*((s.signature.module, s.signature.name) for s in info.slots), *optional}))

    def settings(self, name: str) -> dict[str, Any]:
        """The stage with all defaults filled in, also those of its slots; without what does not enter the key."""
        return {k: v for k, v in self.steps[name].dump().items() if k not in NOT_IN_KEY}

    @property
    def resolved(self) -> dict[str, Any]:
        """The recipe after extends, profile, vars, matrix and repeat, with all defaults."""
        head = self.head.model_dump(mode="json", include={"schema_version", "name", "description", "tags", "seed"})
        return {**head, "stages": {name: info.dump() for name, info in self.steps.items()}}

    def problem(self, name: str, port: str, message: str, advice: str = "") -> Problem:
        """A problem at a key of a step, with its place in the file."""
        info = self.steps[name]
        mark = follow(info.node, port).where
        return Problem(mark.file, mark.line, mark.column, f"{info.path}.{port}".strip("."), message, advice)


def load_recipe(
    path: Path | str,
    *,
    profile: str | None = None,
    overrides: tuple[str, ...] | list[str] = (),
    home: Path | None = None,
) -> Recipe:
    """Read, expand and check a recipe. Raises RecipeError with every problem found.

    `home` is the folder of the user's own code and data where the file is a copy that lies elsewhere.
    """
    path = Path(path)
    try:
        with bounded_reading():
            return _load(path, profile, tuple(overrides), home or path.resolve().parent)
    except RecursionError:
        raise RecipeError(
            [Problem(str(path), 1, 1, "", "nested too deeply", "vars and extends pile up here")]
        ) from None


def _load(path: Path, profile: str | None, overrides: tuple[str, ...], home: Path) -> Recipe:
    root = read_recipe(path, profile, overrides)
    root = root.without(*(k for k in root.value if k.startswith("x-")))
    scope = _scope(root)
    head, problems = _head(root, path, scope)
    if head is None:
        raise RecipeError(limited(problems))
    check_defaults(root.get("defaults"))
    units = expand(root.value["stages"], root.get("defaults"), scope)
    said = root.get("endpoints")
    servers = declared_endpoints(said and substitute(said, scope, "endpoints"))
    units = [replace(unit, node=with_endpoints(unit.node, servers, unit.path, scope.allowance)) for unit in units]
    folders = tuple(dict.fromkeys((home, Path.cwd())))
    infos = _infos(units, folders, problems)
    _refuse(problems)
    if head.budget is not None and head.budget.lacks_prices(info.dump() for info in infos.values()):
        mark = follow(root, "budget.money").where
        problems.append(Problem(mark.file, mark.line, mark.column, "budget.money", MONEY_NEEDS_PRICES))
    infos = complete_gates(complete_decontamination(infos, problems), problems)
    steps = check_graph(infos, problems)
    _refuse(problems)
    problems, warnings = refusals(steps)
    said = root.get("promote")
    promoted = promotion(said, head.promote, head.name, steps, problems) if said and head.promote else None
    _refuse(problems)
    return Recipe(str(path), profile, head, steps, tuple(warnings), folders, promoted)


def _scope(root: Node) -> Scope:
    """The variables of a recipe, and what is left for all that they are put into."""
    allowance = Allowance()
    return Scope({"vars": resolve_vars(root.get("vars"), allowance)}, allowance)


def _head(root: Node, path: Path, scope: Scope) -> tuple[Head | None, list[Problem]]:
    said = {k: substitute(v, scope, k) if k in SAID else v
            for k, v in root.value.items()}  # fmt: skip
    node = root.with_value(said)
    try:
        head = Head.model_validate(node.plain())
    except ValidationError as error:
        return None, problems_of(error, node.with_value(said), "", Head)
    wrong = list(coerced(node.without("vars", "defaults", "profiles", "stages"), head.model_dump(), ""))
    if head.schedule is not None:
        wrong += check_schedule(node.value["schedule"], head.schedule, head.profiles)
    if wrong:
        return None, wrong
    return head if head.name else head.model_copy(update={"name": _file_name(path)}), []


def _file_name(path: Path) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in path.stem).strip("-._")
    return kept[:100] or "recipe"


def _infos(units: list[Unit], folders: tuple[Path, ...], problems: list[Problem]) -> dict[str, StepInfo]:
    infos: dict[str, StepInfo] = {}
    for unit in units:
        if unit.name in infos:
            first: Mark = infos[unit.name].node.where
            advice = f"the other stands on line {first.line}; rename one"
            where = unit.node.where
            said = f"two steps are called `{unit.name}`"
            problems.append(Problem(where.file, where.line, where.column, unit.path, said, advice))
        elif (info := info_of(unit, folders, problems)) is not None:
            infos[unit.name] = info
        if len(problems) > MAX_PROBLEMS:
            break
    return infos


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise RecipeError(limited(problems))
