"""Receipts as JSON of varied depth, with a question that only the structure answers: more tea than nuts?"""

import json
from typing import Any

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

BUYERS = ("Ada", "Ben", "Cyd", "Dan")


def receipts(*, size: Size, seed: int = 0, split: Split, test_share: TestShare = 0.2) -> list[Row]:
    """Generate `size` distinct receipts, each a text of JSON; the answer is `yes` if more tea than nuts were bought.

    Lines come in any order; how deep they and their amounts stand differs, and some keys are missing. Raise StepError
    if `size` is more than there are.
    """
    rng = np.random.default_rng([seed, len(split)])

    def draw(_: dict[str, Row]) -> Row | None:
        text, answer = draw_receipt(rng)
        return make_row("receipts", text, answer, {}) if is_in_split(hash_text(text), split, test_share) else None

    return draw_rows(draw, size, 50 * size, "receipts", split, "lower `size` or change `test_share`")


def draw_receipt(rng: np.random.Generator) -> tuple[str, str]:
    """Return a receipt and whether it has more tea than nuts."""
    tea, nuts = (int(n) for n in rng.choice(9, size=2, replace=False) + 1)
    lines: list[dict[str, Any]] = []
    for item, count in (("tea", tea), ("nuts", nuts)):
        amount: dict[str, Any] = {"amount": {"count": count}} if rng.random() < 0.5 else {"count": count}
        lines.append({"item": item, **amount})
    body: dict[str, Any] = {"lines": [lines[int(n)] for n in rng.permutation(2)]}
    if rng.random() < 0.5:
        body = {"order": body}
    if rng.random() < 0.7:
        body["buyer"] = {"name": BUYERS[int(rng.integers(len(BUYERS)))]}
    return json.dumps(body), "yes" if tea > nuts else "no"
