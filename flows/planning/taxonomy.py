"""Place recipes in a survey's tree of ways to optimise an agent, from their compiled stages alone."""

import json
from collections.abc import Iterator, Mapping, Sequence

from flows.planning.compile import compile_recipe
from lineage.layout import Layout
from schemas.errors import PosttrainError, StepError
from schemas.plan import Plan, Step
from schemas.recipe.load import load_recipe
from schemas.stages.union import traits_of
from tasks.context import Context

TREE: dict[str, tuple[str, ...]] = {
    "branch": ("fine-tuning", "reinforcement learning", "hybrid", "parameter-free"),
    "trajectories": ("written", "sampled", "explored"),
    "technique": ("whole weights", "adapters"),
    "reward": ("rule", "model", "preferences"),
    "optimiser": ("actor-critic", "critic-free", "direct preference"),
    "parameter-free": ("program", "retrieval", "experience"),
}
"""Aspect to its leaves."""
Leaf = tuple[str, str]


def taxonomy_report(context: Context, *, folder: str = "papers") -> dict[str, int]:
    """Write report.json and report.md on the recipes in a folder of the input `recipes`: which leaves each covers.

    A recipe that does not compile covers nothing and is named. Raise StepError if there are no recipes.
    """
    files = sorted((context.input("recipes") / folder).glob("*.yaml"))
    if not files:
        raise StepError(f"taxonomy_report: no recipes in {folder}/ of the input")
    leaves_by_recipe: dict[str, list[Leaf]] = {}
    broken: dict[str, str] = {}
    for file in files:
        try:
            leaves_by_recipe[file.stem] = classify(compile_recipe(load_recipe(file), Layout(context.folder)))
        except PosttrainError as error:
            broken[file.stem] = str(error).partition("\n")[0].replace(f"{file.parent}/", "")
    table, lacking = tabulate(leaves_by_recipe)
    report = {"recipes": {k: [" / ".join(leaf) for leaf in v] for k, v in leaves_by_recipe.items()}, "broken": broken}
    report |= {"leaves": {" / ".join(leaf): names for leaf, names in table.items()}, "missing": lacking}
    out = context.output("report")
    (out / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    (out / "report.md").write_text(_make_page(table, broken), encoding="utf-8")
    return {"recipes": len(leaves_by_recipe), "broken": len(broken), "leaves": len(table), "missing": len(lacking)}


def tabulate(leaves_by_recipe: Mapping[str, Sequence[Leaf]]) -> tuple[dict[Leaf, list[str]], list[str]]:
    """Return every leaf of the tree with its recipes, and the names of the leaves without any."""
    leaves = [(aspect, leaf) for aspect, names in TREE.items() for leaf in names]
    table = {leaf: [name for name, own in leaves_by_recipe.items() if leaf in own] for leaf in leaves}
    return table, [" / ".join(leaf) for leaf, names in table.items() if not names]


def classify(plan: Plan) -> list[Leaf]:
    """Return the leaves of a recipe, in the order of the tree."""
    covered = {leaf for step in plan.steps for leaf in (*_classify_training(step), *_classify_frozen(step))} | set(
        _classify_branches(plan)
    )
    return [(aspect, leaf) for aspect, names in TREE.items() for leaf in names if (aspect, leaf) in covered]


def _classify_training(step: Step) -> Iterator[Leaf]:
    """Yield the leaves of one step: trajectories, technique, reward and optimiser."""
    settings, ports = step.settings, [step_input.port for step_input in step.inputs]
    traits = traits_of(step.kind)
    if traits.counts_yield and "prompts" not in step.outputs.values():
        yield "trajectories", "written" if settings["teacher"] else "sampled"
    if traits.training_signal == "demonstrations" and any(i.port == traits.data_port and i.source for i in step.inputs):
        yield "trajectories", "written"
    if traits.training_signal:
        yield "technique", "adapters" if settings.get("use_peft") else "whole weights"
    if traits.training_signal == "preferences":
        yield from (("reward", "preferences"), ("optimiser", "direct preference"))
    if traits.training_signal == "rewards":
        yield "trajectories", "explored"
        yield "optimiser", "actor-critic" if settings["critic"] else "critic-free"
        for i in range(len(settings["rewards"])):
            yield "reward", "model" if any(port.startswith(f"rewards.{i}.") for port in ports) else "rule"


def _classify_frozen(step: Step) -> Iterator[Leaf]:
    """Yield the leaves of steps that use models without training them."""
    if traits_of(step.kind).scores_models and (step.settings.get("solver") or step.settings.get("solvers")):
        yield "branch", "parameter-free"
        retrieves = any(i.port.startswith(("solver.", "solvers.")) for i in step.inputs)
        yield "parameter-free", "retrieval" if retrieves else "program"
    if "agent" in step.outputs.values() and any(i.port == "model" for i in step.inputs):
        yield from (("branch", "parameter-free"), ("parameter-free", "experience"))


def _classify_branches(plan: Plan) -> Iterator[Leaf]:
    """Yield the branch of every evaluated model that no other evaluated model was made from."""
    inputs = [step_input for step in plan.steps if traits_of(step.kind).scores_models for step_input in step.inputs]
    evaluated = {name for step_input in inputs if step_input.type in ("policy", "adapter") for name in step_input.steps}
    made = {name: _find_ancestors(name, plan) for name in sorted(evaluated)}
    for name, through in made.items():
        signals = {traits_of(plan.step(step).kind).training_signal for step in through | {name}}
        tuned, reinforced = "demonstrations" in signals, bool(signals & {"preferences", "rewards"})
        if (tuned or reinforced) and not any(name in others for others in made.values()):
            one = "fine-tuning" if tuned else "reinforcement learning"
            yield "branch", "hybrid" if tuned and reinforced else one


def _find_ancestors(name: str, plan: Plan) -> set[str]:
    """Return the steps that a step's weights went through before it."""
    starts = [i for i in plan.step(name).inputs if i.type in ("policy", "adapter") and _is_start(i.port)]
    before = {step for step_input in starts for step in step_input.steps}
    return before.union(*(_find_ancestors(step, plan) for step in before))


def _is_start(port: str) -> bool:
    """Return whether weights start from a port: not a reference, a judge, or a model that is sampled from."""
    return port == "model" or port.startswith(("models.", "slices.", "base_model"))


def _make_page(table: Mapping[Leaf, Sequence[str]], broken: Mapping[str, str]) -> str:
    lines = ["| aspect | leaf | recipes |", "|---|---|---|"]
    lines += [f"| {aspect} | {leaf} | {', '.join(names) or '**none**'} |" for (aspect, leaf), names in table.items()]
    return "\n".join([*lines, *(f"\n{name} does not compile: {why}" for name, why in broken.items())]) + "\n"
