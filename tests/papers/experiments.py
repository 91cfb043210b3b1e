"""What a paper's recipe trains, on what, for what, and against what, as a short description of its expanded stages.

`tests/papers/experiments/<id>.yaml` says what the row claims to do; the test of the same name compares it with the
recipe. Reviewed by hand: `python -m tests.papers.experiments ID` prints a draft.
"""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from schemas.evaluation_slots import TRAINED_ON
from schemas.recipe.load import Recipe, load_recipe
from tests.papers.own_data import list_overrides

ROOT = Path(__file__).parents[2]
SPEED = {
    *("kind", "resources", "dtype", "seed", "max_tokens_per_micro_batch", "gate", "against", "logging_steps"),
    *("adam_beta2", "warmup_ratio", "lr_scheduler_type", "max_length", "config", "tokenizer", "decontaminate"),
}
"""Settings that belong to no comparison: hardware, the optimiser of a cold start, and what is added to every recipe."""
TRAINING = {"rl", "preference", "reward_model", "action_values", "merge", "practice", "control"}
FILE = re.compile(r'path:(/own/[^"]+)')
OTHER_FUNCTIONS = {
    *(("gfcr", "env"), ("lmrl-gym", "env"), ("meow-tea-taro", "env")),
    *(("coderl-plus", "resample"), ("dart-gui", "env"), ("rl-mle-agents", "env"), ("verltool", "env")),
    *((row, "env") for row in ("agentgym-rl", "epo", "g-ra", "gigpo", "loop", "rlvmr", "spa-rl")),
    *(("rlif", "exploration"), ("rlif", "relabel"), ("mars", "turn_order"), ("barfi", "loss")),
    *(("oppo", "loss"), ("spo", "segment_reward"), ("webagent-r1", "env"), ("tti", "env")),
    *(("cm2", "env"), ("deeptravel", "env"), ("chain-of-agents", "env"), ("starling", "env")),
    ("search-self-play", "roles"),
    *(("learning-to-fly", "relabel"), ("inspo", "prompt_sampler"), ("knowledge-enhanced-agents", "env")),
    ("ui-tars-2", "env"),
}
"""Slots in which a user's problems need another function than the toy problems: real Python, an own environment or
game, an expert in it, a reader of real documents, a writer of instructions, a heuristic reward, what rates or compares
episodes."""
OTHER_SIZES = {"verltool", "lite-ppo", "open-rl-benchmark"}
"""Rows whose profile `full` has more: a tool, the other half of an ablation and its steps, algorithms and seeds."""


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
    settings = recipe.stages[name].model_dump(
        mode="json", exclude_unset=True, exclude=set(recipe.stages[name].filled_in)
    )
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


def list_functions(value: Any) -> list[str]:
    """Return the functions that a setting names, with those of their options."""
    if isinstance(value, dict):
        named = [value["use"]] if isinstance(value.get("use"), str) else []
        return named + [name for one in value.values() for name in list_functions(one)]
    return [name for one in value for name in list_functions(one)] if isinstance(value, list) else []


def describe_method(recipe: Recipe, name: str) -> dict[str, Any]:
    """Return the functions in the slots of a stage and what it reads, the same for any number of rounds."""
    settings = recipe.stages[name].model_dump(
        mode="json", exclude_unset=True, exclude=set(recipe.stages[name].filled_in)
    )
    slots = {
        key: named
        for key, value in settings.items()
        if key not in {*SPEED, "engine"} and (named := list_functions(value))
    }
    reads = describe_step(recipe, name).get("reads", {})
    last = {port: re.sub(r"-\d+-", "-N-", steps.partition("/")[0]) for port, steps in reads.items()}
    return {"kind": settings["kind"], "reads": last, **slots}


@cache
def read_profile(path: Path, profile: str) -> Recipe:
    """Return a recipe in the profile `full` or `own`, the latter with files and models of a user."""
    return load_recipe(path, profile=profile, overrides=list_given(path) if profile == "own" else [])


def list_given(path: Path) -> list[str]:
    """Return `--set` values for the variables of the profile `own`, with a folder for each, so that none are alike."""
    given = list_overrides(path.stem, Path("/own"), "path:/own/model")
    return [text.replace("path:/own/", f"path:/own/{text.partition('=')[0].removeprefix('vars.')}/") for text in given]


def describe_profile(path: Path, profile: str) -> dict[str, Any]:
    """Return what a profile changes in the steps of `tiny`, the steps that it adds, and the number of its steps."""
    tiny, recipe = read_recipe(path), read_profile(path, profile)
    changes: dict[str, Any] = {"number of steps": len(recipe.stages)}
    for name in [name for name in recipe.stages if name in tiny.stages or not re.search(r"-\d+-", name)]:
        before = describe_step(tiny, name) if name in tiny.stages else {}
        step = describe_step(recipe, name)
        changed = {key: value for key, value in step.items() if key != "reads" and before.get(key) != value}
        outside = {port.path: port.source for port in recipe.ports(name) if port.source and port.accepts}
        changed |= {"from outside": outside} if outside and recipe.stages[name].kind != "data" else {}
        changes |= {name: changed} if changed else {}
    return changes


def list_full_differences(path: Path, like: dict[str, str]) -> list[str]:
    """Return where the profile `full` is another experiment than `tiny`: functions, reads, what comparisons vary."""
    if path.stem in OTHER_SIZES:
        return []
    tiny, full = read_recipe(path), read_profile(path, "full")
    differences = [
        f"{name}.{key}"
        for name in tiny.stages
        for ours, theirs in [(describe_method(tiny, name), describe_method(full, name))]
        for key in {**ours, **theirs}
        if ours.get(key) != theirs.get(key)
    ]
    for name, model in like.items():
        varied = [
            {key for key in {**a, **b} if a.get(key) != b.get(key)}
            for recipe in (tiny, full)
            for a, b in [(describe_step(recipe, name), describe_step(recipe, model))]
        ]
        differences += [f"{name} against {model}: {key}" for key in sorted(varied[0] ^ varied[1])]
    return differences


def list_own_differences(path: Path) -> list[str]:
    """Return where the profile `own` trains by another method than `tiny`, or on the held-out problems."""
    tiny, own = read_recipe(path), read_profile(path, "own")
    held_out = [file for text in list_given(path) if text.startswith("vars.held_out=") for file in FILE.findall(text)]
    differences: list[str] = []
    for name in [name for name, stage in own.stages.items() if stage.kind in TRAINING and name in tiny.stages]:
        ours, theirs = describe_method(tiny, name), describe_method(own, name)
        own_slots = {"reads", "env"} if own.stages[name].kind == "control" else {"reads", "rewards"}
        changed = {key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)} - own_slots
        differences += [f"{name}.{key}" for key in sorted(changed) if (path.stem, key) not in OTHER_FUNCTIONS]
        before, now = ours["reads"], theirs["reads"]
        differences += [f"{name} reads {port}" for port, step in now.items() if before.get(port, step) != step]
        sources = {port.path: port.steps for port in tiny.ports(name) if not port.path.startswith("rewards.")}
        lost = [port for port, steps in sources.items() if steps and port not in now]
        differences += [f"{name} lacks {port}" for port in lost if sources[port][0] in own.stages]
        makers = [own.stages[step] for step in list_ancestors(own, name)]
        read = "".join(stage.model_dump_json() for stage in makers if stage.kind == "data")
        differences += [f"{name} trains on the held-out problems" for file in held_out if file in read]
    return differences


def list_ancestors(recipe: Recipe, name: str) -> list[str]:
    """Return a step and all steps that it depends on, without those that it is only compared with."""
    reached = [name]
    for step in reached:
        ports = [port for port in recipe.ports(step) if not port.path.startswith((f"{TRAINED_ON}.", "decontaminate."))]
        reached += {before for port in ports for before in port.steps} - set(reached)
    return reached


def find_unmeasured(recipe: Recipe) -> list[str]:
    """Return the trained and merged models on which no evaluation and no function depends, not even through another."""
    ends = {name for name, stage in recipe.stages.items() if stage.kind in ("evaluate", "evaluate_control", "python")}
    reached, frontier = set(ends), list(ends)
    while frontier:
        for port in recipe.ports(frontier.pop()):
            frontier += [step for step in port.steps if step not in reached]
            reached |= set(port.steps)
    kinds = {name: stage.kind for name, stage in recipe.stages.items()}
    trained = [
        name for name, kind in kinds.items() if kind in ("rl", "preference", "action_values", "merge", "control")
    ]
    return [name for name in trained if name not in reached]


def find_alike(recipe: Recipe) -> dict[str, str]:
    """Return, for training stages that differ little from an earlier one of their kind, that one."""
    alike, earlier = {}, {}
    for name, stage in recipe.stages.items():
        if stage.kind in ("rl", "preference", "merge", "control"):
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
    draft["profiles"] = {profile: describe_profile(recipe_file, profile) for profile in ("full", "own")}
    print(yaml.safe_dump(draft, sort_keys=False, width=1000, default_flow_style=None, allow_unicode=True), end="")
