"""What a paper's recipe trains, on what, for what, and against what, as a short description of its expanded stages.

`tests/papers/experiments/<id>.yaml` says what the row claims to do; the test of the same name compares it with the
recipe. Reviewed by hand: `python -m tests.papers.experiments ID` prints a draft.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from schemas.evaluation_slots import TRAINED_ON
from schemas.recipe.load import Recipe, load_recipe

ROOT = Path(__file__).parents[2]
SPEED = {
    *("kind", "resources", "dtype", "seed", "max_tokens_per_micro_batch", "gate", "against", "logging_steps"),
    *("adam_beta2", "warmup_ratio", "lr_scheduler_type", "max_length", "config", "tokenizer", "decontaminate"),
}
"""Settings that belong to no comparison: hardware, the optimiser of a cold start, and what is added to every recipe."""


@cache
def read_recipe(path: Path) -> Recipe:
    """Return a recipe in its tiny profile, with its stages expanded."""
    return load_recipe(path, profile="tiny")


def shorten(value: Any) -> Any:
    """Return a setting with the uses inside it as `name(option=value, …)`; numbers and names stay as they are."""
    if isinstance(value, dict) and "use" not in value:
        return {key: shorten(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shorten(one) for one in value]
    return write(value) if isinstance(value, dict) else value


def write(value: Any) -> str:
    """Return a setting as text without quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(write, value))}]"
    if not isinstance(value, dict):
        return str(value)
    inner = ", ".join(f"{key}={write(one)}" for key, one in value.items() if key not in ("use", "style"))
    return f"{value.get('use', '')}({inner})" if inner or "use" not in value else str(value["use"])


def describe_step(recipe: Recipe, name: str) -> dict[str, Any]:
    """Return a stage's settings that make the experiment, and under `reads` the steps behind its ports."""
    settings = recipe.stages[name].model_dump(mode="json", exclude_unset=True)
    described = {key: shorten(value) for key, value in settings.items() if key not in SPEED}
    ports = [port for port in recipe.ports(name) if not port.path.startswith(f"{TRAINED_ON}.")]
    for port in ports:
        described.pop(port.path.partition(".")[0] if port.path.startswith(("models.", "inputs.")) else port.path, None)
    reads = {p.path: "/".join(p.steps) + (f".{p.output}" if p.output else "") for p in ports if p.steps}
    return {"reads": reads, **described} if reads else described


def describe(path: Path, like: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return what each step does; those of `like` only as their difference from the step that they are compared with.

    Steps that the recipe inherits unchanged from its base are left out.
    """
    recipe, inherited = read_recipe(path), {}
    base = yaml.safe_load(path.read_text(encoding="utf-8")).get("extends")
    if base:
        other = read_recipe((path.parent / base).resolve())
        inherited = {name: describe_step(other, name) for name in other.stages}
    steps = {name: describe_step(recipe, name) for name in recipe.stages}
    made = {name: step for name, step in steps.items() if step and step != inherited.get(name)}
    for name, model in like.items():
        ours, theirs = steps[name], steps[model]
        keys = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
        made[name] = {"like": model, **{key: ours.get(key) for key in keys}}
    return made


def read_claim(row: str) -> dict[str, dict[str, Any]]:
    """Return what a row claims to do."""
    return yaml.safe_load((ROOT / "tests" / "papers" / "experiments" / f"{row}.yaml").read_text(encoding="utf-8"))


def find_unmeasured(recipe: Recipe) -> list[str]:
    """Return the trained and merged models on which no evaluation and no function depends, not even through another."""
    ends = {name for name, stage in recipe.stages.items() if stage.kind in ("evaluate", "python")}
    reached, frontier = set(ends), list(ends)
    while frontier:
        for port in recipe.ports(frontier.pop()):
            frontier += [step for step in port.steps if step not in reached]
            reached |= set(port.steps)
    kinds = {name: stage.kind for name, stage in recipe.stages.items()}
    return [name for name, kind in kinds.items() if kind in ("rl", "preference", "merge") and name not in reached]


def find_alike(recipe: Recipe) -> dict[str, str]:
    """Return, for training stages that differ little from an earlier one of their kind, that one."""
    alike, earlier = {}, {}
    for name, stage in recipe.stages.items():
        if stage.kind in ("rl", "preference", "merge"):
            step = describe_step(recipe, name)
            differ = {o: sum(step.get(k) != s.get(k) for k in {**s, **step}) for o, s in earlier.items()}
            near = [o for o, number in differ.items() if 2 * number < len(step) and recipe.stages[o].kind == stage.kind]
            if near:
                alike[name] = min(near, key=lambda o: differ[o])
            earlier[name] = step
    return alike


if __name__ == "__main__":
    recipe_file = ROOT / "recipes" / "papers" / f"{sys.argv[1]}.yaml"
    draft = describe(recipe_file, find_alike(read_recipe(recipe_file)))
    print(yaml.safe_dump(draft, sort_keys=False, width=1000, default_flow_style=None, allow_unicode=True), end="")
