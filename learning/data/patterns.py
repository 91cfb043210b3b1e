"""Regular expressions of a recipe on texts that a model wrote: each match has a time limit.

Many patterns take a time on some texts that grows with a power of their length, or exponentially; Python's `re` holds
the interpreter for all of it. The library regex matches the same patterns and gives up after a time.
"""

import re
from collections.abc import Callable
from typing import Any

import regex

SECONDS = 1.0
"""For one text."""
LITERAL_BRACE = re.compile(r"\\N\{[^}]*\}|\\.|\{(?!\d+(?:,\d*)?\}|,\d*\})", re.DOTALL)
"""A brace that counts nothing stands for itself in `re`; in regex it may begin a fuzzy match."""


class MatchTimeout(Exception):
    """A pattern that has found no answer about a text within its time."""


class Pattern:
    """A pattern in the language of `re`. Raises re.error for a bad one; matching raises MatchTimeout."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self.groups = re.compile(text, flags).groups
        plain = LITERAL_BRACE.sub(lambda match: match[0] if match[0][0] == "\\" else r"\{", text)
        try:
            self.compiled = regex.compile(plain, (regex.DOTALL if flags & re.DOTALL else 0) | regex.VERSION0)
        except regex.error as error:
            raise re.error(str(error), text) from None

    def search(self, text: str) -> Any:
        """Return the first match, None where there is none."""
        return _within(lambda: self.compiled.search(text, timeout=SECONDS))

    def fullmatch(self, text: str) -> Any:
        """Return the match of the whole text, None where there is none."""
        return _within(lambda: self.compiled.fullmatch(text, timeout=SECONDS))

    def last(self, text: str) -> str | None:
        """Return the last match, of it the first group if the pattern has any; None where nothing matches."""

        def find() -> str | None:
            match = None
            for match in self.compiled.finditer(text, timeout=SECONDS):  # noqa: B007 - the last one is wanted
                pass
            return None if match is None else match[1] if self.groups else match[0]

        return _within(find)


def _within(match: Callable[[], Any]) -> Any:
    try:
        return match()
    except TimeoutError:
        raise MatchTimeout(f"the pattern has not come to an end within {SECONDS:g} s") from None
