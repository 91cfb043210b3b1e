"""Reward functions of other tools: their own ones by posttrain's counterparts, the user's as they are."""

from pathlib import Path

from schemas.base import JsonObject
from schemas.importers.common.job import Job
from schemas.importers.common.references import refer

Reward = JsonObject
THINK = "(?s)<think>.+?</think>.*"
MATHEMATICS: Reward = {"use": "mathematics.equal"}
EQUAL = "compares values of numbers and lists, else texts; math_verify also simplifies expressions"
BUILT_IN: dict[str, tuple[Reward, str]] = {
    "accuracy_reward": (dict(MATHEMATICS), EQUAL),
    "reasoning_accuracy_reward": (dict(MATHEMATICS), EQUAL),
    "think_format_reward": ({"use": "formats.matches", "pattern": THINK}, "the same format"),
    "accuracy": (dict(MATHEMATICS), EQUAL),
    "format": ({"use": "formats.matches", "pattern": THINK}, "<think>…</think> before the answer"),
    "gsm8k": ({"use": "answers.exact", "marker": "####"}, "the text after #### is the answer"),
    "math": (dict(MATHEMATICS), EQUAL),
    "countdown": ({"use": "answers.scored"}, "reasoning-gym's verifier"),
}
"""Functions of TRL, verl and oumi: posttrain's, and how they differ."""
FALLBACK: Reward = {"use": "answers.exact"}


def map_rewards(job: Job, key: str, style: str, weights: list[float] | None = None) -> list[Reward]:
    """Return the rewards that a key names, as functions of posttrain or of the user; `answers.exact` if none is usable.

    `style` is the signature of the user's functions: `trl` or `verl`.
    """
    leaves, names = job.leaves, job.leaves.get(key)
    rewards: list[Reward] = []
    notes: list[str] = []
    missing = False
    for index, name in enumerate(names if isinstance(names, list) else [] if names is None else [names]):
        reward, note = _find_reward(job, str(name), style)
        if weights and index < len(weights) and reward is not None:
            reward["weight"] = weights[index]
        missing = missing or reward is None
        notes.append(f"{name}: {note}")
        rewards += [] if reward is None else [reward]
    for reward in rewards if style == "trl" and len(rewards) > 1 else ():
        reward["optional"] = True  # TRL adds up the scores that are there
    leaves.account(key, "not supported" if missing else "mapped", "; ".join(notes))
    return rewards or [dict(FALLBACK)]


def _find_reward(job: Job, name: str, style: str) -> tuple[Reward | None, str]:
    if name in BUILT_IN:
        reward, note = BUILT_IN[name]
        return dict(reward), f"{reward['use']} ({note})"
    if name.endswith("soft_overlong_punishment"):
        return None, "set `reward_shaping: [{use: overlong, max_length: …, cache: …}]`"
    if "." in name and not name.startswith((".", "/")):
        module, _, function = name.rpartition(".")
        if any((folder / Path(*module.split("."))).with_suffix(".py").is_file() for folder in _code_folders(job)):
            return {"use": f"foreign.{style}", "function": f"{module}:{function}"}, f"foreign.{style} calls it as it is"
        place = f"{module.replace('.', '/')}.py"
        return (
            None,
            f'put {place} beside the recipe and write `{{use: foreign.{style}, function: "{module}:{function}"}}`',
        )
    if "/" in name:
        try:
            return {"use": "models.learned", "model": refer(name, job.places)}, "models.learned"
        except ValueError as error:
            return None, str(error)
    return None, f'no such reward; write your own as `{{use: foreign.{style}, function: "module:function"}}`'


def find_function_in_file(job: Job, path: str, function: str, style: str) -> tuple[Reward | None, str]:
    """Return the reward that calls a function of a file; the file must be below the recipe's or the current folder."""
    place = job.places.find(path)
    for folder in _code_folders(job):
        if place is None or not place.is_file() or place.suffix != ".py":
            break
        resolved = place.resolve()
        if resolved.is_relative_to(folder.resolve()):
            module = ".".join(resolved.relative_to(folder.resolve()).with_suffix("").parts)
            if all(part.isidentifier() for part in module.split(".")):
                return {"use": f"foreign.{style}", "function": f"{module}:{function}"}, f"{module}:{function}"
    module = Path(path).stem
    advice = (
        f'put {Path(path).name} beside the recipe and write `{{use: foreign.{style}, function: "{module}:{function}"}}`'
    )
    return None, advice


def _code_folders(job: Job) -> tuple[Path, ...]:
    """Return where a recipe finds the user's code."""
    return (job.places.recipe, Path.cwd())
