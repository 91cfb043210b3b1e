"""Loads a recipe: reads, expands and validates it, and reports all problems at once."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from schemas.base import JsonObject, Schema
from schemas.budget import MONEY_NEEDS_PRICES, Budget
from schemas.checks.merges import list_merge_functions
from schemas.checks.refusals import find_refusals
from schemas.checks.schedule import check_schedule, find_missing_sources
from schemas.endpoint import Endpoint
from schemas.errors import Problem, RecipeError
from schemas.expansion.contaminated_rows import KEY, add_curations
from schemas.expansion.endpoint_names import read_endpoints, replace_endpoints
from schemas.expansion.entries import is_source
from schemas.expansion.expand import Unit, check_defaults, expand
from schemas.expansion.inline_data import add_data_stages
from schemas.modules import bounded_reading
from schemas.notify import Notify
from schemas.outcome import Outcome
from schemas.plan import BranchOf, Promotion, Until
from schemas.recipe.head_advice import advise_on_head, check_profile_keys
from schemas.schedule import Schedule
from schemas.source.extend import find_unknown_stages, read_recipe
from schemas.source.limits import MAX_PROBLEMS, Allowance
from schemas.source.tree import Mark, Node, make_nodes, merge_nodes
from schemas.source.validation import convert_errors, find_coercions, follow_path, limit_problems
from schemas.source.variables import Scope, find_unused_variables, resolve_vars, substitute
from schemas.stages.base import BaseStage
from schemas.steps.approvers import add_approvers
from schemas.steps.decontamination import complete_decontamination
from schemas.steps.gate_baselines import resolve_baselines
from schemas.steps.held_out import add_held_out_problems
from schemas.steps.learning_rates import complete_learning_rates
from schemas.steps.needed import leave_out_unneeded
from schemas.steps.order import check_graph
from schemas.steps.outcome import check_outcome
from schemas.steps.promotion import Promote, resolve_promotion
from schemas.steps.searches import add_searched_stages
from schemas.steps.step_info import Port, StepInfo, validate_step
from schemas.steps.training_rows import add_training_rows
from schemas.trackers import Tracker

SUBSTITUTED = {"name", "description", "tags", "seed", "schedule", "promote", "budget", "endpoints"}
"""Keys of the head that may contain `${vars.x}`."""
NOT_IN_KEY = {"description", "after", "resources", "retries", "timeout", "seed", "tests", KEY}


class Head(Schema):
    """The keys of a recipe except its stages."""

    schema_version: Literal[1] = 1
    """Version of the recipe format."""
    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")
    """Name of the recipe in runs, MLflow and Prefect; default: the name of the file."""
    description: str = ""
    """Purpose of the recipe, shown in plans and reports."""
    tags: list[str] = []
    """Tags for searching."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of every stage that does not set its own."""
    vars: JsonObject = {}
    """Variables, used as `${vars.name}`."""
    defaults: dict[str, JsonObject] = {}
    """Default keys by kind; a stage of the kind may override them."""
    profiles: dict[str, JsonObject | None] = {}
    """Named overrides of this recipe: `--profile tiny`; null takes away one that it inherits."""
    schedule: Schedule | None = None
    """When the recipe's deployment starts runs."""
    promote: Promote | None = None
    """Which model becomes champion after a run, and by which gate."""
    outcome: Outcome | None = None
    """The comparison that `posttrain evidence` repeats over seeds."""
    budget: Budget | None = None
    """Limits on the cost of one run."""
    notify: list[Notify] = []
    """Webhooks that receive messages about runs; not part of any key."""
    track: list[Tracker] = ["mlflow"]
    """Trackers that record runs, in the state folder; not part of any key. Without `mlflow`, runs are not in MLflow."""
    approvers: list[str] = []
    """Accounts of the operating system that may decide about gates with `on_fail: approve` which name none, with
    `posttrain approve` only, and not about a run that they started; not part of any key. Empty: anyone."""
    endpoints: dict[str, Endpoint] = {}
    """OpenAI-compatible servers, by the names that stages use: `endpoint: teacher`."""
    stages: JsonObject = Field(min_length=1)
    """Name to stage; a stage has a `kind`, or it is a loop with `repeat`, or a model from outside:
    `start: path:./model`. With such a model, steps that only prepared what it replaces are left out."""


@dataclass(frozen=True)
class Recipe:
    """A valid recipe; its steps are the stages after matrix and repeat, in an order in which they can run."""

    file: str
    profile: str | None
    head: Head
    steps: dict[str, StepInfo]
    warnings: tuple[Problem, ...] = ()
    folders: tuple[Path, ...] = field(default=(), compare=False)
    """Where user-defined code is searched: the recipe's folder, then the current one."""
    promotion: Promotion | None = None
    """Which model becomes champion after a run."""

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.head.name

    @property
    def stages(self) -> dict[str, BaseStage]:
        """Step name to its validated stage."""
        return {name: info.stage for name, info in self.steps.items()}

    def origin(self, name: str) -> str:
        """Return the stage of the recipe that a step comes from: `sft` for `sft@lr=1`, `loop.rl` for `loop-2-rl`."""
        return self.steps[name].origin

    def seed(self, name: str) -> int:
        """Return the seed of a step."""
        own = self.steps[name].stage.seed
        return self.head.seed if own is None else own

    def ports(self, name: str) -> tuple[Port, ...]:
        """Return every reference of a step, resolved."""
        return self.steps[name].ports

    def outputs(self, name: str) -> dict[str, str]:
        """Return the named outputs of a step and their artifact types, the default first."""
        return dict(self.steps[name].outputs)

    def after(self, name: str) -> tuple[str, ...]:
        """Return steps that must finish first although no data comes from them."""
        return self.steps[name].after

    def unless(self, name: str) -> tuple[Until, ...]:
        """Return the conditions under which a step of a loop is skipped."""
        return self.steps[name].unless

    def branch_of(self, name: str) -> tuple[BranchOf, ...]:
        """Return the gates that branch to a step."""
        return self.steps[name].branch_of

    def code(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return module and name of every function that a step's slots use, and of its optional parts, sorted."""
        info = self.steps[name]
        merged = list_merge_functions(info.stage)
        signatures = [slot.signature for slot in info.slots]
        optional = info.stage.optional_code({name for signature in signatures for name in signature.supplied}).values()
        return tuple(sorted({*((signature.module, signature.name) for signature in signatures), *merged, *optional}))

    def settings(self, name: str) -> JsonObject:
        """Return the stage with all defaults, also those of its slots; without what is not in the key."""
        return {k: v for k, v in self.steps[name].dump().items() if k not in NOT_IN_KEY}

    @property
    def resolved(self) -> JsonObject:
        """The recipe after applying extends, profile, vars, matrix and repeat, with all defaults."""
        head = self.head.model_dump(mode="json", include={"schema_version", "name", "description", "tags", "seed"})
        return {**head, "stages": {name: info.dump() for name, info in self.steps.items()}}

    def problem(self, name: str, port: str, message: str, advice: str = "") -> Problem:
        """Return a problem at a key of a step, with its position in the file."""
        info = self.steps[name]
        mark = follow_path(info.node, port).where
        return Problem(mark.file, mark.line, mark.column, f"{info.path}.{port}".strip("."), message, advice)


def load_recipe(
    path: Path | str,
    *,
    profile: str | None = None,
    overrides: tuple[str, ...] | list[str] = (),
    home: Path | None = None,
    top: JsonObject | None = None,
) -> Recipe:
    """Read, expand and validate a recipe. Raise RecipeError with every problem found.

    `home` is the folder of the user's code and data if the file is a copy in another folder. `top` is put on top of the
    recipe, after profile and overrides.
    """
    path = Path(path)
    try:
        with bounded_reading():
            return _load_checked(path, profile, tuple(overrides), home or path.resolve().parent, top)
    except RecursionError:
        raise RecipeError(
            [Problem(str(path), 1, 1, "", "nested too deeply", "vars and extends pile up here")]
        ) from None


def _load_checked(
    path: Path, profile: str | None, overrides: tuple[str, ...], home: Path, top: JsonObject | None
) -> Recipe:
    written = read_recipe(path, profile, overrides)
    written = written.without(*(k for k in written.value if k.startswith("x-")))
    root = written if top is None else merge_nodes(written, make_nodes(top, written.mark))
    scope = _make_scope(root)
    head, problems = _read_head(root, path, scope)
    folders = tuple(dict.fromkeys((home, Path.cwd())))
    infos = _read_steps(root, scope, folders, problems)
    if head is None or problems:
        raise RecipeError(limit_problems(problems))
    if head.budget is not None and head.budget.lacks_prices(info.dump() for info in infos.values()):
        mark = follow_path(root, "budget.money").where
        problems.append(Problem(mark.file, mark.line, mark.column, "budget.money", MONEY_NEEDS_PRICES))
    infos = add_held_out_problems(resolve_baselines(complete_decontamination(infos, problems), problems))
    steps = check_graph(add_approvers(infos, head.approvers), problems)
    _raise_problems(problems)
    if any(is_source(node) for node in root.value["stages"].value.values()):
        steps = leave_out_unneeded(steps)
    steps = add_searched_stages(add_training_rows(complete_learning_rates(steps)), head.seed, problems)
    _raise_problems(problems)
    problems, warnings = find_refusals(steps, folders)
    unknown = (problem for name in head.profiles for problem in find_unknown_stages(root, name))
    warnings += [
        problem for problem in unknown if problem.file == root.where.file
    ]  # those of a base are not its author's
    warnings += find_unused_variables(written)  # `top` has values in place of variables
    if head.schedule is not None:
        warnings += find_missing_sources(root.value["schedule"], head.schedule, folders)
    promote = root.get("promote")
    promoted = (
        resolve_promotion(promote, head.promote, head.name, steps, problems) if promote and head.promote else None
    )
    outcome = root.get("outcome")
    if outcome and head.outcome:
        problems += check_outcome(outcome, head.outcome, steps)
    _raise_problems(problems)
    return Recipe(str(path), profile, head, steps, tuple(warnings), folders, promoted)


def _read_steps(root: Node, scope: Scope, folders: tuple[Path, ...], problems: list[Problem]) -> dict[str, StepInfo]:
    """Return the validated steps; add problems, which do not repeat those of the head that are there already."""
    stages, known = root.get("stages"), {(p.line, p.column, p.path) for p in problems}
    if stages is None or not stages.is_map:
        return {}
    step_problems: list[Problem] = []
    infos: dict[str, StepInfo] = {}
    try:
        check_defaults(root.get("defaults"))
        units = expand(stages, root.get("defaults"), scope)
        units = add_curations(add_data_stages(units, root.get("defaults"), scope, folders))
        endpoints = root.get("endpoints")
        servers = read_endpoints(endpoints and substitute(endpoints, scope, "endpoints"))
        units = [
            replace(unit, node=replace_endpoints(unit.node, servers, unit.path, scope.allowance)) for unit in units
        ]
        infos = _validate_steps(units, folders, step_problems)
    except RecipeError as error:
        step_problems += error.problems
    problems += [p for p in step_problems if (p.line, p.column, p.path) not in known]
    return infos


def _make_scope(root: Node) -> Scope:
    """Return the variables of a recipe, and the remaining allowance for the size of substituted values."""
    allowance = Allowance()
    return Scope({"vars": resolve_vars(root.get("vars"), allowance)}, allowance)


def _read_head(root: Node, path: Path, scope: Scope) -> tuple[Head | None, list[Problem]]:
    children = {k: substitute(v, scope, k) if k in SUBSTITUTED else v for k, v in root.value.items()}
    node = root.with_value(children)
    try:
        head = Head.model_validate(node.plain())
    except ValidationError as error:
        return None, advise_on_head(convert_errors(error, node.with_value(children), "", Head), node)
    head_problems = list(find_coercions(node.without("vars", "defaults", "profiles", "stages"), head.model_dump(), ""))
    if head.schedule is not None:
        head_problems += check_schedule(node.value["schedule"], head.schedule, head.profiles)
    head_problems += check_profile_keys(node.get("profiles"), Head.model_fields)
    if head_problems:
        return None, advise_on_head(head_problems, node)
    return head if head.name else head.model_copy(update={"name": _name_from_file(path)}), []


def _name_from_file(path: Path) -> str:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in path.stem).strip("-._")
    return name[:100] or "recipe"


def _validate_steps(units: list[Unit], folders: tuple[Path, ...], problems: list[Problem]) -> dict[str, StepInfo]:
    infos: dict[str, StepInfo] = {}
    for unit in units:
        if unit.name in infos:
            first: Mark = infos[unit.name].node.where
            advice = f"the other stands on line {first.line}; rename one"
            where = unit.node.where
            message = f"two steps are called `{unit.name}`"
            problems.append(Problem(where.file, where.line, where.column, unit.path, message, advice))
        elif (info := validate_step(unit, folders, problems)) is not None:
            infos[unit.name] = info
        if len(problems) > MAX_PROBLEMS:
            break
    return infos


def _raise_problems(problems: list[Problem]) -> None:
    if problems:
        raise RecipeError(limit_problems(problems))
