"""What a designer of watermarks does on held-out prompts: z of its texts, and how well z separates attacked texts."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learning.control.policies.policy import load_control_policy
from learning.control.worlds.watermarks import TERMS, Count, Key, Meant, Part, Share, Watermarks, Weight, watermarks
from learning.lookup import Inner
from schemas.control import ActingUse

if TYPE_CHECKING:
    ActingFunction = Inner
else:
    ActingFunction = ActingUse
FILE = "watermarks.json"
KINDS = ("marked", "removed", "spoofed")


def compute_auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the probability that a positive exceeds a negative; a tie counts one half."""
    differences = np.subtract.outer(np.asarray(positive), np.asarray(negative))
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())


def measure_watermarks(
    context: Any,
    *,
    by: ActingFunction | None = None,
    meanings: Meant = [],  # noqa: B006
    gamma: Share = 0.5,
    delta: Weight = 2.0,
    length: Count = 24,
    deleted: Part = 0.1,
    swapped: Part = 0.5,
    key: Key = 0,
) -> dict[str, float]:
    """Write z of marked, attacked and plain texts of all prompts, and the areas under the curve.

    Inputs are the `backbone`, the `prompts` and the designer as `policy`; or the rule `by` designs. Options are those
    of the world `watermarks`. Plain texts are those of the backbone without favour. An area (`auc.removed`) is that of
    telling such texts from plain ones: near 1 is wanted of marked and removed ones, near one half of spoofed ones.
    """
    world = watermarks(
        backbone=context.input("inputs.backbone"),
        prompts=context.input("inputs.prompts"),
        meanings=meanings,
        gamma=gamma,
        delta=delta,
        length=length,
        deleted=deleted,
        swapped=swapped,
        key=key,
    )
    policy = None if by is not None else load_control_policy(Path(context.input("inputs.policy")))
    rule: Any = by

    def design(shown: Sequence[int]) -> np.ndarray:
        observation_NO = world.count(shown)[None]
        if policy is not None:
            return np.asarray(policy.act(observation_NO, explore=False))[0] > 0
        supplies = {"observation_NO": observation_NO, "rng": np.random.default_rng(0), "spaces": None}
        return rule.bound.ask(0, supplies)[0] > 0

    scores, qualities = _measure(world, design)
    metrics = {f"z.{kind}": float(np.mean(values)) for kind, values in scores.items()}
    metrics |= {f"auc.{kind}": compute_auc(scores[kind], scores["plain"]) for kind in KINDS}
    metrics["quality"] = float(np.mean(qualities))
    (context.output("result") / FILE).write_text(json.dumps({"scores": scores, "metrics": metrics}) + "\n")
    return metrics


def _measure(
    world: Watermarks, design: Callable[[Sequence[int]], np.ndarray]
) -> tuple[dict[str, list[float]], list[float]]:
    """Return z of each kind of text, and the quality of the marked ones, prompt by prompt."""
    scores: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "plain")}
    qualities = []
    for place in range(len(world.rows)):
        world.begin(place)
        while world.phase < len(TERMS):
            world.advance(design(world.shown))
        values = world.values
        qualities.append(values["quality"])
        for kind, value in zip(KINDS, (values["detection"], values["removal"], -values["spoofing"]), strict=True):
            scores[kind].append(value)
        plain = world.encode(world.write(place, np.zeros(world.size, bool), 0.0)[0])
        scores["plain"].append(world.detect(plain, design(plain)))
    return scores, qualities
