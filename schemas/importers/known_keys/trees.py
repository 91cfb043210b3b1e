"""Dotted keys of a tool, written as words below each prefix."""

from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

Value = TypeVar("Value")


def list_keys(words: Mapping[str, str]) -> frozenset[str]:
    """Return dotted keys from words by prefix; in a key `*` is one key or number, and `**` is everything below."""
    return frozenset(f"{prefix}.{word}".strip(".") for prefix, text in words.items() for word in text.split())


def matches(key: str, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that a dotted key fits, or None."""
    if isinstance(patterns, Container) and key in patterns:
        return key
    parts = key.split(".")
    return next((p for p in _list_patterns(frozenset(patterns)) if _fits(parts, p.split("."))), None)


@lru_cache(maxsize=64)
def _list_patterns(keys: frozenset[str]) -> tuple[str, ...]:
    """Return the keys with a `*`, sorted."""
    return tuple(sorted(key for key in keys if "*" in key))


def _fits(parts: list[str], pattern: list[str]) -> bool:
    if pattern[-1] == "**":
        head = pattern[:-1]
        return len(parts) >= len(head) and _fits_each(parts[: len(head)], head)
    return len(parts) == len(pattern) and _fits_each(parts, pattern)


def _fits_each(parts: list[str], pattern: list[str]) -> bool:
    return all(want in ("*", part) for part, want in zip(parts, pattern, strict=True))
