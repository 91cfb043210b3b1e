r"""Rewards for mathematical answers by the library math-verify, whose computer algebra runs in the sandbox.

Reading an answer with sympy evaluates it. The library therefore reads what a model wrote only in the sandboxed
processes that verifiers of reasoning-gym run in. `mathematics.equal` needs no library and no sandbox.
"""

import importlib.util
from typing import Any

from learning.data.rows import Row
from learning.reasoning_gym.verifiers import judge
from learning.rewards.answers import find_boxed
from schemas.base import JsonObject
from schemas.errors import StepError


def math_verify(rows: list[Row], completions: list[str], *, last: int = 2000) -> list[float | None]:
    r"""Return 1 if the final answer equals the row's by math-verify, else 0; None for rows without an answer.

    The library looks for the last `\boxed{…}`, LaTeX or number in the last `last` characters. An answer that needs more
    than three seconds of processor time or 512 MiB, or that it cannot read, scores 0. Needs Linux and the package
    `math-verify`.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise StepError(
            "reward computer_algebra.math_verify: no package math-verify: pip install 'posttrain[math]'; "
            "`mathematics.equal` needs none"
        )
    places = [place for place, row in enumerate(rows) if row["answer"] is not None]
    sent = [{"id": rows[i].get("id"), "answer": rows[i]["answer"], "metadata": "{}"} for i in places]
    scores: list[float | None] = [None] * len(rows)
    for place, verdict in zip(places, judge(sent, [completions[i][-last:] for i in places], SCORER), strict=True):
        scores[place] = verdict.score or 0.0
    return scores


class Comparison:
    """Scores texts by math-verify; its methods are called in a sandboxed process only."""

    def __init__(self) -> None:
        # The children inherit the loaded modules and tables.
        self.score_answer(r"\boxed{\frac{1}{2}}, \sqrt{2}, x + 1", {"answer": r"$\frac{1}{2}$"})

    def score_answer(self, text: str, entry: JsonObject) -> float:
        """Return 1.0 if the text's final answer equals that of the entry, else 0.0."""
        from math_verify import parse, verify  # an optional dependency

        # The sandbox limits time; the library's own limit needs signals.
        answer = entry["answer"]
        gold: list[Any] = parse(answer, parsing_timeout=0) or parse(f"${answer}$", parsing_timeout=0)
        # An answer that the library reads as a text only may still be LaTeX without its delimiters.
        if "$" not in answer and find_boxed(answer) is None:
            gold = parse(rf"\boxed{{{answer}}}", parsing_timeout=0) or gold
        return float(verify(gold, parse(text, parsing_timeout=0), timeout_seconds=0))


SCORER = f"{__name__}:{Comparison.__name__}"
"""Names the class by itself, so that the keys of steps that use the reward contain its code."""
