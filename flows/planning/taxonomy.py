"""Where recipes stand in a survey's tree of ways to optimise an agent, told from their compiled stages alone.

The tree is that of "A Survey on the Optimization of Large Language Model-based Agents" (2025, arXiv:2503.12434) as far
as text without tools goes: parameters are tuned, reinforced or both, or left alone; what is tuned comes from written,
sampled or explored trajectories, by whole weights or adapters, with some reward and some optimiser.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from flows.compile import compile_recipe
from lineage.layout import Layout
from schemas.errors import PosttrainError, StepError
from schemas.plan import Plan, Step
from schemas.recipe import load_recipe
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
REINFORCED = {"rl", "preference"}
Leaf = tuple[str, str]


def taxonomy_report(context: Context, *, folder: str = "papers") -> dict[str, int]:
    """Write report.json and report.md on the recipes in a folder of the input `recipes`: leaves, and who covers them.

    A recipe that does not compile covers nothing and is named. Raises StepError when there are no recipes.
    """
    files = sorted((context.input("recipes") / folder).glob("*.yaml"))
    if not files:
        raise StepError(f"taxonomy_report: no recipes in {folder}/ of the input")
    found: dict[str, list[Leaf]] = {}
    broken: dict[str, str] = {}
    for file in files:
        try:
            found[file.stem] = classify(compile_recipe(load_recipe(file), Layout(context.folder)))
        except PosttrainError as error:
            broken[file.stem] = str(error).partition("\n")[0].replace(f"{file.parent}/", "")
    table, lacking = covered(found)
    report = {"recipes": {k: [" / ".join(leaf) for leaf in v] for k, v in found.items()}, "broken": broken}
    report |= {"leaves": {" / ".join(leaf): names for leaf, names in table.items()}, "missing": lacking}
    out = context.output("report")
    (out / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    (out / "report.md").write_text(_page(table, broken), encoding="utf-8")
    return {"recipes": len(found), "broken": len(broken), "leaves": len(table), "missing": len(lacking)}


def covered(found: Mapping[str, Sequence[Leaf]]) -> tuple[dict[Leaf, list[str]], list[str]]:
    """Every leaf of the tree with the recipes that stand there, and the names of those where none does."""
    leaves = [(aspect, leaf) for aspect, names in TREE.items() for leaf in names]
    table = {leaf: [name for name, stands in found.items() if leaf in stands] for leaf in leaves}
    return table, [" / ".join(leaf) for leaf, names in table.items() if not names]


def classify(plan: Plan) -> list[Leaf]:
    """The leaves where a recipe stands, in the order of the tree."""
    found = {leaf for step in plan.steps for leaf in (*_training(step), *_beside(step))} | set(_branches(plan))
    return [(aspect, leaf) for aspect, names in TREE.items() for leaf in names if (aspect, leaf) in found]


def _training(step: Step) -> Iterator[Leaf]:
    """What one step says of trajectories, technique, reward and optimiser."""
    said, ports = step.settings, [given.port for given in step.inputs]
    if step.kind == "synthesize" and said["emit"] != "prompts":
        yield "trajectories", "written" if said["teacher"] else "sampled"
    if step.kind == "sft" and any(given.port == "data" and given.source for given in step.inputs):
        yield "trajectories", "written"
    if step.kind in {"sft", *REINFORCED}:
        yield "technique", "adapters" if said.get("use_peft") else "whole weights"
    if step.kind == "preference":
        yield from (("reward", "preferences"), ("optimiser", "direct preference"))
    if step.kind == "rl":
        yield "trajectories", "explored"
        yield "optimiser", "actor-critic" if said["critic"] else "critic-free"
        for i in range(len(said["rewards"])):
            yield "reward", "model" if any(port.startswith(f"rewards.{i}.") for port in ports) else "rule"


def _beside(step: Step) -> Iterator[Leaf]:
    """What is done with models that stay as they are, beside asking them."""
    if step.kind == "evaluate" and step.settings["solver"]:
        yield "branch", "parameter-free"
        yield "parameter-free", "retrieval" if any(i.port.startswith("solver.") for i in step.inputs) else "program"
    if step.kind == "practice":
        yield from (("branch", "parameter-free"), ("parameter-free", "experience"))


def _branches(plan: Plan) -> Iterator[Leaf]:
    """The branch of every model that is evaluated, but not of those that others of them were made from."""
    inputs = [given for step in plan.steps if step.kind == "evaluate" for given in step.inputs]
    evaluated = {name for given in inputs if given.type in ("policy", "adapter") for name in given.steps}
    made = {name: _made_by(name, plan) for name in sorted(evaluated)}
    for name, through in made.items():
        kinds = {plan.step(step).kind for step in through | {name}}
        tuned, reinforced = "sft" in kinds, bool(kinds & REINFORCED)
        if (tuned or reinforced) and not any(name in others for others in made.values()):
            one = "fine-tuning" if tuned else "reinforcement learning"
            yield "branch", "hybrid" if tuned and reinforced else one


def _made_by(name: str, plan: Plan) -> set[str]:
    """Steps that a step's weights went through before it."""
    starts = [i for i in plan.step(name).inputs if i.type in ("policy", "adapter") and _is_start(i.port)]
    before = {step for given in starts for step in given.steps}
    return before.union(*(_made_by(step, plan) for step in before))


def _is_start(port: str) -> bool:
    """Whether a port is where weights come from: not a reference, a judge, or a model that is sampled from."""
    return port == "model" or port.startswith(("models.", "slices.", "base_model"))


def _page(table: Mapping[Leaf, Sequence[str]], broken: Mapping[str, str]) -> str:
    lines = ["| aspect | leaf | recipes |", "|---|---|---|"]
    lines += [f"| {aspect} | {leaf} | {', '.join(names) or '**none**'} |" for (aspect, leaf), names in table.items()]
    return "\n".join([*lines, *(f"\n{name} does not compile: {why}" for name, why in broken.items())]) + "\n"
