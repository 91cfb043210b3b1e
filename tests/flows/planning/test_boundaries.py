"""What keys leave out: only the listed modules, and never code that computes a value."""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from flows.planning import closure
from flows.planning.boundaries import BOUNDARIES, Reason, find_boundary
from flows.planning.closure import Closure
from flows.planning.compile import compile_recipe
from flows.planning.facts_cache import FactsCache
from lineage.layout import Layout
from schemas.addresses import fits
from schemas.errors import PlanError
from schemas.modules import load
from schemas.package import ROOT
from schemas.recipe.load import load_recipe

KNOWN = FactsCache()
QUICKSTART = ROOT / "recipes/quickstart.yaml"
MAX_MODULES = 67
"""Modules in the key of a GRPO step; every definition in them can change its numbers."""
HIDDEN = {
    "learning.api.requests": "what earlier requests cost",
    "learning.api.response_store": "what earlier requests cost",
    "learning.curation.decontamination": "problems among training rows, which an evaluation only says",
    "learning.curation.ledger": "problems among training rows, which an evaluation only says",
    "learning.curation.training_overlap": "problems among training rows, which an evaluation only says",
    "learning.data.messages": "rows that an evaluation compares with its problems",
    "learning.data.rows": "rows that an evaluation compares with its problems",
    "learning.data.chat_settings": "the chat of a worker that samples",
    "learning.generation.replicas.replica": "the workers that sample",
    "learning.generation.replicas.rolling_update": "weights from the trainer to workers",
    "learning.generation.services.rescoring": "likelihoods, computed by workers",
    "learning.generation.services.rollout_service": "the loop of a worker that samples",
    "learning.generation.weights.protocol": "weights from the trainer to workers",
    "learning.models": "the model of a worker that samples: likelihoods, weights from the trainer",
    "learning.parallel.checkpoint_shards": "checkpoints of several ranks",
    "learning.samples.engine_protocol": "what a worker needs of an engine",
    "learning.samples.kept_tokens": "what a worker that samples records",
    "schemas.agent": "settings",
    "schemas.auxiliary": "settings",
    "schemas.chat_settings": "the chat of a worker that samples",
    "schemas.control": "settings",
    "schemas.critic": "settings",
    "schemas.data_slices": "a validator of settings, in a step that converts no rows",
    "schemas.endpoint": "settings",
    "schemas.evaluation_slots": "settings",
    "schemas.expectations": "a validator of settings, in a step that measures no data",
    "schemas.gates": "settings",
    "schemas.kept_tokens": "settings, in a step that samples from all tokens",
    "schemas.learning_rates": "defaults of settings",
    "schemas.modules": "names",
    "schemas.number_schedules": "settings, in a step that binds no function",
    "schemas.private_data": "type of an option, in a step that looks for none",
    "schemas.resources": "placement",
    "schemas.roles": "settings",
    "schemas.row_formats": "a validator of settings, in a step that converts no rows",
    "schemas.row_templates": "a validator of settings, in a step that converts no rows",
    "schemas.suggestions": "advice of a validator of settings",
    "schemas.search_space": "a validator of settings",
    "schemas.schedule_phases": "a validator of settings, in a step without training",
    "schemas.supplied": "names of what slots supply",
}
"""Modules, or packages, with definitions that a step reaches through boundaries only, and what for."""
COUNTED = {
    "learning.rl.trained_network": ("schemas.auxiliary", "Auxiliary"),
    "learning.agents.drafting": ("schemas.agent", "Agent"),
    "learning.agents.environment": ("schemas.agent", "Agent"),
}
"""Modules that call methods of a class of settings: every step that reaches one reaches the class, too."""
NUMBER_GIVING = [
    ("learning.algorithm.policy_losses.policy_gradient", "clipped"),
    ("learning.algorithm.advantages.normalisation", "center"),
    ("learning.algorithm.advantages.normalisation", "_mean_of_others"),
    ("learning.algorithm.loss", "micro_loss"),
    ("learning.algorithm.loss_aggregation.aggregation", "token_mean"),
    ("learning.algorithm.ratios.ratios", "token"),
    ("learning.batch.batch", "Batch.take"),
    ("learning.batch.batch_layout", "forest"),
    ("learning.batch.columns", "select_sources"),
    ("learning.batch.micro_batches", "split_mini_batches"),
    ("learning.collection.group_filters", "reward_variance"),
    ("learning.collection.prompt_samplers", "uniform"),
    ("learning.collection.rollouts.rollouts", "synchronous"),
    ("learning.data.chat", "encode_prompt"),
    ("learning.data.rows", "read_rows"),
    ("learning.data.rendering", "fill_template"),
    ("learning.data.rows", "replace_half_characters"),
    ("learning.generation.replicas.engine_loading", "make_engine"),
    ("learning.lookup", "build"),
    ("learning.generation.engines.slots", "compute_slot_logits"),
    ("learning.generation.engines.token_sampling", "pick"),
    ("learning.generation.engines.torch", "Engine.generate"),
    ("learning.lookup", "options_of"),
    ("learning.models.forwards", "apply_compute_options"),
    ("learning.models.optimize", "make_optimizer"),
    ("learning.models.optimize", "clip_gradients"),
    ("learning.models.packed", "packed_statistics"),
    ("learning.models.policy", "load_policy"),
    ("learning.models.policy", "save_trained"),
    ("learning.models.policy", "set_determinism"),
    ("learning.models.reward_model", "load_reward_model"),
    ("learning.models.sharded_model", "Trained.backward"),
    ("learning.parallel.group", "Group.rounds"),
    ("learning.rewards.answers", "exact"),
    ("learning.rewards.models", "learned"),
    ("learning.rl.iteration", "collect_samples"),
    ("learning.rl.monitoring", "Watchdogs.look"),
    ("learning.batch.micro_batches", "statistics_of"),
    ("learning.rl.sampling_slots", "keep_groups"),
    ("learning.rl.state", "resume"),
    ("learning.rl.update", "update"),
    ("learning.samples.sample", "History.add"),
    ("learning.sampling.sampler", "Sampler.build_sample"),
    ("learning.sampling.scoring", "scores_of"),
    ("schemas.number_schedules", "value_at"),
    ("tasks.rl", "prepare"),
]
"""Definitions that determine the numbers of the quickstart's GRPO step."""
SETTINGS_METHODS = {
    ("WithOptionalCode", "optional_code"): "names roots of the closure",
    ("BaseStage", "task_module"): "names a root of the closure",
    ("BaseStage", "outputs"): "names and types of outputs, which are in the plan and in the keys of later steps",
    ("Evaluation", "holds_out"): "read by validators",
    **dict.fromkeys(
        (("Linear", "at"), ("Cosine", "at"), ("Piecewise", "at")), "called by `value_at`, which reaches the classes"
    ),
    ("Use", "options"): "the mapping of the recipe's own values; a slot's values are in the key",
    ("Reference", "scheme"): "read by plans",
    ("Reference", "stage"): "read by plans",
    ("Reference", "output"): "read by plans",
    ("Price", "cost"): "what a server charges",
    ("Agent", "tool_names"): "counts with `Agent` (`COUNTED`)",
    ("Auxiliary", "type"): "counts with `Auxiliary` (`COUNTED`)",
    ("Auxiliary", "columns"): "counts with `Auxiliary` (`COUNTED`)",
    ("Resources", "roles"): "placement",
    ("Resources", "all_cpus"): "placement",
    ("Resources", "all_gpus"): "placement",
}
"""Methods of settings that are no validators, and why leaving them out of keys is sound."""


@cache
def step(recipe: Path, name: str) -> tuple[list[tuple[str, str]], tuple[Path, ...]]:
    """Return the roots of a step's closure, and the user's folders."""
    loaded = load_recipe(recipe)
    return [(f"tasks.{loaded.stages[name].task_module}", "run"), *loaded.code(name)], loaded.folders


def code() -> dict[str, str]:
    """Return module to digest of the quickstart's GRPO step."""
    roots, folders = step(QUICKSTART, "rl_1")
    return Closure(folders, KNOWN).of(roots)


def plant(source: str, name: str | None) -> str:
    """Return a source with a statement more in a function (`function`, `Class.method`; None: in every function)."""
    lines = source.splitlines()
    places = []

    def visit(node: ast.AST, path: str) -> None:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.FunctionDef | ast.ClassDef):
                inside = f"{path}.{inner.name}".strip(".")
                if isinstance(inner, ast.FunctionDef) and name in (None, inside):
                    places.append(inner.body[-1])
                visit(inner, inside)

    visit(ast.parse(source), "")
    assert places or name is None, name
    for last in sorted(places, key=lambda node: node.lineno, reverse=True):
        lines.insert(last.lineno - 1, f"{' ' * last.col_offset}planted = None")
    return "\n".join(lines)


@pytest.fixture
def edit(monkeypatch):
    """Edit modules as a closure reads them: module to a function of it, None for all of them."""
    plain = closure.read_module

    def apply(edits):
        files = {(ROOT / module.replace(".", "/")).with_suffix(".py"): name for module, name in edits.items()}
        assert all(file.is_file() for file in files)

        def read(file, known):
            if file in files:
                return known.facts(plant(file.read_text(), files[file]).encode(), str(file))
            return plain(file, known)

        monkeypatch.setattr(closure, "read_module", read)

    return apply


def modules_of(boundary):
    """Return the modules of a boundary."""
    folder = ROOT / boundary.module.replace(".", "/")
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names]


def files_of(reason):
    """Yield the modules of the boundaries of a reason with their syntax trees."""
    for boundary in BOUNDARIES:
        if boundary.reason is reason:
            for name in modules_of(boundary):
                yield name, ast.parse(Path(str(inspect.getsourcefile(importlib.import_module(name)))).read_text())


def test_every_boundary_is_there():
    closure = Closure(known=KNOWN)
    for boundary in BOUNDARIES:
        assert all(closure.locate(name) is not None for name in modules_of(boundary)), boundary


def test_no_boundary_lies_inside_another():
    names = [boundary.module for boundary in BOUNDARIES]
    assert not [(a, b) for a in names for b in names if a != b and a.startswith(f"{b}.")]


def test_a_grpo_step_reaches_few_modules_and_only_the_functions_that_it_names():
    roots, folders = step(QUICKSTART, "rl_1")
    definitions = Closure(folders, KNOWN)
    reached = definitions.reached(roots)
    assert len(reached) <= MAX_MODULES, "\n".join(reached)
    slots = [type(slot) for slot in closure.uses(load_recipe(QUICKSTART).stages["rl_1"]) if not type(slot).member]
    named = {name for _, name in roots}
    for slot in slots:
        for module, indexes in reached.items():
            if module.startswith("learning.batch."):
                continue  # operations that loops and slots share
            if any(module == home or module.startswith(f"{home}.") for home in slot.home):
                names = {name for index in indexes for name in definitions.facts(module).statements[index].names}
                functions = load(module).functions
                others = {name for name in names & functions.keys() if fits(slot, functions[name])} - named
                assert not {name for name in others if not name.startswith("_")}, module


@pytest.mark.parametrize(("module", "name"), NUMBER_GIVING, ids=lambda text: text.rpartition(".")[2])
def test_an_edit_of_code_that_gives_numbers_changes_the_key(edit, module, name):
    before = unedited()
    edit({module: name})
    after = code()
    assert {name for name in after if after[name] != before[name]} == {module}


@cache
def unedited():
    """Return the code in the key of the quickstart's GRPO step as it is."""
    return code()


def test_an_edit_behind_a_boundary_changes_no_key(edit):
    before = unedited()
    behind = [name for boundary in BOUNDARIES for name in modules_of(boundary)]
    edit({name: None for name in behind if not (ROOT / name.replace(".", "/")).is_dir()})
    assert code() == before


def test_boundaries_hide_only_what_is_listed(monkeypatch):
    """Of every step of every shipped recipe."""
    files = sorted([*(ROOT / "recipes").glob("*.yaml"), *(ROOT / "recipes/papers").glob("*.yaml")])
    plans = dict.fromkeys(
        ((f"tasks.{recipe.settings(name)['kind']}", "run"), *recipe.code(name))
        for recipe in map(load_recipe, files)
        for name in recipe.steps
    )
    bounded = Closure((), KNOWN)
    kept = [bounded.reached(roots) for roots in plans]
    met = {boundary for module, _ in bounded._edges if (boundary := find_boundary(module)) is not None}
    assert met == set(BOUNDARIES)  # each is needed
    monkeypatch.setattr(closure, "find_boundary", lambda module: None)
    unbounded = Closure((), KNOWN)
    hidden: set[str] = set()
    for roots, left in zip(plans, kept, strict=True):
        everything = unbounded.reached(roots)
        assert left.keys() <= everything.keys()
        for module, indexes in everything.items():
            if find_boundary(module) is None and defines(unbounded, module, set(indexes) - set(left.get(module, ()))):
                hidden.add(module)
    entries = {"learning.models" if module.startswith("learning.models.") else module for module in hidden}
    assert entries == HIDDEN.keys()
    for left in kept:
        for module, (of, name) in COUNTED.items():
            assert module not in left or set(bounded.facts(of).by_name[name]) <= set(left[of]), (module, name)


def defines(closure: Closure, module: str, indexes: set[int]) -> bool:
    """Return whether one of some statements does more than bind an imported name."""
    return any(closure.facts(module).statements[index].binding is None for index in indexes)


def test_a_function_behind_a_boundary_cannot_be_named():
    with pytest.raises(PlanError, match=r"`learning\.parallel\.pool:Pool` cannot be named: keys leave"):
        Closure().of([("learning.parallel.pool", "Pool")])


def test_settings_hold_values_and_no_computation():
    """A class of settings has fields and validators; each other method is listed with its reason."""
    names = {name for name, _ in files_of(Reason.SETTINGS)} | {name for name in HIDDEN if name.startswith("schemas.")}
    computed: set[tuple[str, str]] = set()
    for module in map(importlib.import_module, sorted(names)):
        for name, of in inspect.getmembers(module, inspect.isclass):
            if of.__module__ != module.__name__ or not issubclass(of, BaseModel | str):
                continue
            own = {key for key, value in vars(of).items() if not key.startswith("_") and _computes(value)}
            computed |= {(name, key) for key in own - _validators(of) if not _inherits(of, key)}
    assert computed == SETTINGS_METHODS.keys()


def test_code_of_steps_takes_classes_from_settings_and_nothing_else():
    """A constant or a function of such a module would be missing in the key of a step whose result depends on it."""
    allowed = {
        "WHOLE_ONLY": "optimisers that are refused with shards",
        "JsonObject": "a type",
        "ALL_LINEAR": "a value of a setting",
    }
    settings = {name: importlib.import_module(name) for name, _ in files_of(Reason.SETTINGS)}
    others = set()
    for file in (file for package in ("learning", "tasks") for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in settings:
                taken = {alias.name: getattr(settings[node.module], alias.name) for alias in node.names}
                classes = {n for n, of in taken.items() if inspect.isclass(of) and issubclass(of, BaseModel | str)}
                others |= taken.keys() - classes
    assert others == allowed.keys()


def _validators(of):
    if not issubclass(of, BaseModel):
        return set()
    decorators = of.__pydantic_decorators__
    return {*decorators.field_validators, *decorators.model_validators}


def _computes(value):
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def _inherits(of, key):
    """Return whether a listed method of a base class is overridden."""
    return any((base.__name__, key) in SETTINGS_METHODS for base in of.__mro__[1:])


def test_refusals_only_raise():
    for name, tree in files_of(Reason.REFUSAL):
        if name == "schemas.errors":
            continue
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert functions
        for function in functions:
            returned = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
            assert not returned, f"{name}: {function.name} returns a value"


@pytest.mark.parametrize(
    ("overrides", "module", "name"),
    [
        (("stages.rl_1.use_peft=true",), "learning.models.adapters", "attach_adapters"),
        (("stages.rl_1.use_peft=true",), "learning.models.adapters", "write_adapters"),
        (("stages.rl_1.use_peft=true",), "learning.models.adapter_targets", "find_targets"),
        (("stages.cold_start.use_peft=true",), "learning.models.adapters", "fold_adapters"),
        (("stages.rl_1.algorithm=grpo",), "learning.rl.references", "References.add_to"),
    ],
    ids=lambda value: str(value).rpartition(".")[2] if isinstance(value, str) else None,
)
def test_an_edit_of_an_optional_part_changes_the_key_of_a_step_that_uses_it_only(
    tmp_path, edit, overrides, module, name
):
    def key(*overrides):
        recipe = load_recipe(QUICKSTART, overrides=overrides)
        return compile_recipe(recipe, Layout(tmp_path)).step("rl_1").code

    plain, using = key(), key(*overrides)
    edit({module: name})
    assert key() == plain
    after = key(*overrides)
    assert {other for other in after if after[other] != using[other]} == {module}
