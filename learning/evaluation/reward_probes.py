"""Tests of rewards before training: good answers must score above bad ones, and above what a model may try instead."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from learning.data.rows import Row

Score = Callable[[list[Row], list[str]], list[float | None]]
"""Return one score per completion."""
REPEATS = 20
"""How often the probe `repeated` repeats a good answer."""
SYMBOL = re.compile(r"\w", re.ASCII)


@dataclass(frozen=True)
class RewardTest:
    """A problem with answers of which every good one must score above every bad one."""

    row: Row
    good: Sequence[str]
    bad: Sequence[str] = ()


@dataclass(frozen=True)
class Scored:
    """A tested completion: `kind` is `good`, `bad` or the name of a probe."""

    row: str
    kind: str
    completion: str
    score: float | None
    ok: bool
    """False for a good answer without a score, and for any other text that scores as high as a good answer."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def make_probes(test: RewardTest) -> dict[str, str]:
    """Return texts that earn nothing in a sound reward, by name; without those that are good answers themselves."""
    best = test.good[0] if test.good else ""
    probes = {
        "empty": "",
        "blank": " \n",
        "prompt copied": "\n".join(str(message["content"]) for message in test.row["prompt"]),
        "repeated": "\n".join([best] * REPEATS),
        "format alone": SYMBOL.sub("x", best),
    }
    # A list of the good answer over and over is still that answer for rewards that read the last line.
    return {name: text for name, text in probes.items() if text not in test.good and (best or name != "repeated")}


def run_reward_tests(tests: Iterable[RewardTest], score: Score) -> list[Scored]:
    """Return every good answer, bad answer and probe with its score, and whether the expected order holds."""
    results: list[Scored] = []
    for test in tests:
        texts = [("good", text) for text in test.good] + [("bad", text) for text in test.bad]
        texts += list(make_probes(test).items())
        scores = score([test.row] * len(texts), [text for _, text in texts])
        good = [s for (kind, _), s in zip(texts, scores, strict=True) if kind == "good" and s is not None]
        least = min(good, default=None)
        for (kind, text), value in zip(texts, scores, strict=True):
            ok = value is not None if kind == "good" else value is None or least is None or value < least
            results.append(Scored(str(test.row["id"]), kind, text, value, ok))
    return results
