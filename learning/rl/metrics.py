"""What curves tell of the completions of an iteration."""

from collections.abc import Sequence

from learning.batch.batch import Batch
from learning.samples.sample import Sample


def describe(samples: list[Sample], trained: Batch, *, played: bool = False) -> dict[str, float]:
    """Points for the curves that say what was sampled: of the plain policy, where it sampled anything.

    `played`: completions are episodes.
    """
    plain = [t for t in samples if t.source == "policy"]
    own = plain or [t for t in samples if t.logprobs is not None]
    ended = [t for t in own if t.finish != "suspended"]
    lengths = [sum(t.own) for t in own]
    points: dict[str, float] = {}
    for name in dict.fromkeys(name for t in samples for name in t.scores):
        values = [s for t in ended if (s := t.scores.get(name)) is not None]
        if values:
            points[f"reward/{name}"] = sum(values) / len(values)
    if rewards := [t.reward for t in ended if t.reward is not None]:
        points["reward"] = sum(rewards) / len(rewards)
    return (
        points
        | (turn_points(own) if played else {})
        | {
            "completions": float(len(samples)),
            "completion_length": sum(lengths) / max(len(own), 1),
            "truncated": sum(t.finish == "length" for t in own) / max(len(own), 1),
            "unscorable": sum(t.reward is None for t in samples) / max(len(samples), 1),
            "trained": trained.num_paths / max(len(samples), 1),
            "broken_logprobs": float(trained.tokens["broken"].sum()),
        }
    )


def turn_points(samples: Sequence[Sample]) -> dict[str, float]:
    """Of episodes, per completion.

    `turns` of the model, `env_seconds` that the environment took for them, `failed_turns` that it could not carry out.
    """
    turns, size = [turn for sample in samples for turn in sample.turns], max(len(samples), 1)
    return {
        "turns": sum(sample.num_turns for sample in samples) / size,
        "env_seconds": sum(turn.seconds for turn in turns) / size,
        "failed_turns": sum(not turn.ok for turn in turns) / size,
    }
