r"""Rewards for mathematical answers in LaTeX or plain text; parsed as text, without a computer algebra system."""

import re
from fractions import Fraction

from learning.data.rows import Row
from learning.rewards.answers import extract_final_answer, find_boxed

LONGEST = 300
"""Most characters of an answer that is read as a number or a list of numbers."""
MOST_DIGITS = 60
LAYOUT = re.compile(r"\\(?:left|right|quad|qquad|displaystyle|big|Big)(?![A-Za-z])|\\[ ,;:!()\[\]]|~|\$")
TEXT = re.compile(r"\\(?:text|mathrm|mathbf|mbox|textbf)\s*\{([^{}]*)\}")
FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
THOUSANDS = re.compile(r"\d{1,3}(?:,(?:\\!)?\d{3})+(?:\.\d+)?")
DECIMAL = re.compile(r"\d+(?:\.\d*)?|\.\d+")
DEGREES = re.compile(r"\^\{?\\circ\}?|°|\\degree")
BRACKETS = {"(": ")", "[": "]", "\\{": "\\}"}
CLOSING = frozenset(")]}")


def equal(rows: list[Row], completions: list[str], *, marker: str | None = None) -> list[float | None]:
    r"""Return 1 if the final answer is the row's as a mathematical value, else 0; None for rows without an answer.

    The answer is the content of the last `\boxed{…}`, else the text after the last `marker`, else all of it.
    Numbers are compared exactly, as fractions: `\frac{1}{2}`, `1/2`, `0.5` and `50\%` are equal, and so are lists of
    such numbers in the same brackets and order. Everything else is compared as text without LaTeX's layout.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        boxed = find_boxed(completion)
        answer = boxed if boxed is not None else extract_final_answer(completion, marker)
        if row["answer"] is None:
            scores.append(None)
        else:
            scores.append(float(answer is not None and are_equal(answer, find_boxed(row["answer"]) or row["answer"])))
    return scores


def are_equal(first: str, second: str) -> bool:
    """Return whether two answers have the same value, or the same text if they are no numbers."""
    texts = [_simplify(text) for text in (first, second)]
    if texts[0] == texts[1]:
        return bool(texts[0])
    parts = [_split_list(text) for text in texts]
    if parts[0][0] != parts[1][0] or len(parts[0][1]) != len(parts[1][1]):
        return False
    return all(_are_same(one, other) for one, other in zip(parts[0][1], parts[1][1], strict=True))


def read_value(text: str) -> Fraction | None:
    r"""Return the exact number that an answer is, such as `-3/4`, `1,000`, `1\frac{1}{2}` or `50\%`; else None."""
    return _read(_simplify(text))


def _are_same(one: str, other: str) -> bool:
    values = _read(one), _read(other)
    return one == other if None in values else values[0] == values[1]


def _simplify(text: str) -> str:
    """Return an answer without layout, units of degrees and a final full stop, its fractions written as `(a)/(b)`."""
    if len(text) > LONGEST:
        return " ".join(text.split())
    text = TEXT.sub(r"\1", text.strip())
    if not text.startswith(("(", "[", "\\")):  # in a list, a comma separates
        text = THOUSANDS.sub(lambda match: re.sub(r",(\\!)?", "", match[0]), text)
    text = DEGREES.sub("", LAYOUT.sub("", text)).replace("\\%", "%").replace("−", "-")
    text = FRACTION.sub(lambda m: f"({m[1] or m[2] or ''})/({m[3] or m[4] or ''})", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).removesuffix(".")


def _split_list(text: str) -> tuple[str, list[str]]:
    """Return the brackets around a list, and its entries at the outer level."""
    brackets = next((f"{a}{b}" for a, b in BRACKETS.items() if text.startswith(a) and text.endswith(b)), "")
    half = len(brackets) // 2
    inner = text[half : len(text) - half] if half and len(text) >= 2 * half else text
    depth, start, entries = 0, 0, []
    for place, letter in enumerate(inner):
        depth += (letter in "([{") - (letter in CLOSING)
        if letter == "," and not depth:
            entries.append(inner[start:place])
            start = place + 1
    if not entries:
        return "", [text]
    return brackets, [*entries, inner[start:]]


def _read(text: str) -> Fraction | None:
    if len(text) > LONGEST or sum(letter.isdigit() for letter in text) > MOST_DIGITS:
        return None
    sign = -1 if text.startswith("-") else 1
    text = text[1:] if text[:1] in ("-", "+") else text
    if text.endswith("%"):
        part = _read(text[:-1])
        return None if part is None else sign * part / 100
    if DECIMAL.fullmatch(text):
        return sign * Fraction(text)
    mixed = re.fullmatch(r"(\d+)\((\d+)\)/\((\d+)\)", text)
    if mixed:
        return None if int(mixed[3]) == 0 else sign * (int(mixed[1]) + Fraction(int(mixed[2]), int(mixed[3])))
    above, slash, below = text.partition("/")
    if not slash or "/" in below:
        return None
    values = [_read(part[1:-1] if part.startswith("(") and part.endswith(")") else part) for part in (above, below)]
    if values[0] is None or not values[1]:
        return None
    return sign * values[0] / values[1]
