"""Rules for regular expressions in options: they must compile, and should not need exponential time."""

import re
import warnings
from collections.abc import Iterable, Iterator

from schemas.errors import Problem
from schemas.source.tree import join_path
from schemas.steps.step_info import StepInfo

OPTIONS = ("pattern", "call", "keep", "action", "subject")
"""Options that are regular expressions if their type is a string."""
MAX_PATTERN = 1_000
MAX_CLASSES = 60
"""Largest number of bracket sets in all patterns of a recipe; each may take milliseconds to compile."""
_QUANTIFIER = re.compile(r"[*+]|\{[0-9]*,\}")
_SET = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def check_patterns(steps: Iterable[StepInfo]) -> tuple[list[Problem], list[Problem]]:
    """Return problems of patterns that do not compile, and warnings for patterns that may need exponential time."""
    refused: list[Problem] = []
    warned: list[Problem] = []
    errors: dict[str, str | None] = {}
    sets = 0
    for info, where, text in _find_patterns(steps):
        if text not in errors:
            sets += text.count("[")
            errors[text] = _find_error(text) if sets <= MAX_CLASSES else f"more than {MAX_CLASSES} sets in brackets"
        if (error := errors[text]) is not None:
            refused.append(
                info.problem(where, f"`{text}` is not a regular expression: {error}", "use the syntax of Python's `re`")
            )
        elif repeats_repetition(text):
            message = f"`{text}` has a repetition inside a repetition: some texts of a model may take hours to match"
            advice = "make the inner repetition possessive (`++`, `*+`)"
            warned.append(info.problem(where, message, advice))
    return refused, warned


def _find_patterns(steps: Iterable[StepInfo]) -> Iterator[tuple[StepInfo, str, str]]:
    for info in steps:
        for slot in info.slots:
            for name in OPTIONS if ":" not in slot.use.use else ():
                value = slot.values.get(name)
                if isinstance(value, str) and slot.signature.options[name].type in (str, str | None):
                    yield info, join_path(slot.path, name), value


def _find_error(text: str) -> str | None:
    if len(text) > MAX_PATTERN:
        return f"{len(text)} characters are too many (at most {MAX_PATTERN})"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


def repeats_repetition(pattern: str) -> bool:
    """Return whether an unbounded repetition is inside another, as in `(a+)*`, and neither is possessive."""
    inside = [False]
    kinds = [""]
    place = 0
    while place < len(pattern):
        if pattern[place] == "\\":
            place = _skip_quantifier(pattern, place + 2, inside)
        elif (character_set := _SET.match(pattern, place)) is not None:
            place = _skip_quantifier(pattern, character_set.end(), inside)
        elif pattern[place] == "(":
            inside.append(False)
            kinds.append(pattern[place + 1 : place + 3])
            place += 1
        elif pattern[place] == ")" and len(inside) > 1:
            repeated, atomic = inside.pop(), kinds.pop() == "?>"
            end = _QUANTIFIER.match(pattern, place + 1)
            if repeated and not atomic and end is not None and pattern[end.end() : end.end() + 1] != "+":
                return True
            inside[-1] = inside[-1] or (repeated and not atomic)
            place = _skip_quantifier(pattern, place + 1, inside)
        else:
            place = _skip_quantifier(pattern, place + 1, inside)
    return False


def _skip_quantifier(pattern: str, place: int, inside: list[bool]) -> int:
    """Return the place after an atom's quantifier, noting one that is unbounded and not possessive."""
    quantifier = _QUANTIFIER.match(pattern, place)
    if quantifier is None:
        return place
    possessive = pattern[quantifier.end() : quantifier.end() + 1] == "+"
    inside[-1] = inside[-1] or not possessive
    return quantifier.end() + (1 if possessive else 0)
