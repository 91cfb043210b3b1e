"""Rewards for completions that are JSON. What the model wrote is parsed within limits, never evaluated."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jsonschema
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from learning.data import patterns
from learning.data.patterns import MatchTimeout, Pattern
from schemas.base import JsonObject
from schemas.errors import StepError

LONGEST, DEEPEST, MOST_VALUES, MOST_DIGITS = 20_000, 32, 1_000, 100
"""Characters, nesting, values and digits of a number that a text may have; others count as invalid."""
FENCE = "```"


def valid_json(
    completions: list[str], *, json_schema: JsonObject, where: Literal["whole", "fenced"] = "whole"
) -> list[float | None]:
    """1 if a completion is JSON that is valid under a JSON Schema (draft 2020-12), else 0.

    With `where: fenced` the last block between ``` counts instead of the entire completion. JSON of more than 20,000
    characters, 1,000 values or 32 levels is invalid. None if validation takes more than a second. Raise StepError for a
    schema that is invalid or refers to other files.
    """
    validator = Validator(json_schema)
    return [_score(validator, text if where == "whole" else find_fenced(text)) for text in completions]


def _score(validator: "Validator", text: str | None) -> float | None:
    try:
        return 0.0 if text is None else float(validator.accepts(parse_json(text)))
    except ValueError:
        return 0.0
    except MatchTimeout:
        return None


def find_fenced(text: str) -> str | None:
    """Return the last block between two lines of ```, without its language; None without one."""
    before, separator, rest = text[-LONGEST:].rpartition(FENCE)
    block, opening, inner = before.rpartition(FENCE)
    del block, rest
    if not separator or not opening:
        return None
    first, newline, body = inner.partition("\n")
    return body if newline and first.strip().isalnum() else inner


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raise ValueError if it is no JSON or exceeds a limit."""
    if len(text) > LONGEST:
        raise ValueError("too long")
    try:
        value = json.loads(text, parse_int=_read_number(int), parse_float=_read_number(float), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _refuse_large(value)
    return value


def _read_number(kind: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = kind(text) if len(text) <= MOST_DIGITS else _refuse(text)
        return number if abs(number) <= 1e300 else _refuse(text)

    return read


def _refuse(text: str) -> float:
    raise ValueError(f"not a finite number of at most {MOST_DIGITS} characters: {text[:20]}")


def _refuse_large(value: Any) -> None:
    """Raise ValueError for a value that is nested too deeply or has too many parts."""
    level, count = [value], 0
    for _ in range(DEEPEST):
        count += len(level)
        level = [part for whole in level for part in _parts(whole)]
        if count + len(level) > MOST_VALUES or not level:
            break
    if level:
        raise ValueError("too many or too deeply nested values")


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class Validator:
    """A JSON Schema, with limits on the time of each validation. Raise StepError for an invalid schema."""

    def __init__(self, schema: JsonObject) -> None:
        draft = jsonschema.Draft202012Validator
        try:
            draft.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise StepError(f"reward structured.valid_json: invalid schema: {error.message}") from None
        self.end = 0.0
        keywords = {name: self._limit(check) for name, check in draft.VALIDATORS.items()}
        keywords["pattern"], keywords["patternProperties"] = _check_pattern, self._limit(_check_pattern_properties)
        # An empty registry: by default, jsonschema downloads schemas that are referred to.
        self.validator = extend(draft, keywords)(schema, registry=Registry())

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid. Raise MatchTimeout after a second, and StepError for unknown references."""
        self.end = time.monotonic() + patterns.SECONDS
        try:
            return next(iter(self.validator.iter_errors(value)), None) is None
        except Unresolvable as error:
            raise StepError(f"reward structured.valid_json: the schema refers to {error}, which is not in it") from None

    def _limit(self, check: Callable[..., Any]) -> Callable[..., Any]:
        """Return a keyword's check that first looks at the clock."""

        def limited(validator: Any, keyword: Any, value: Any, schema: Any) -> Any:
            if time.monotonic() > self.end:
                raise MatchTimeout(f"validation has not ended within {patterns.SECONDS:g} s")
            return check(validator, keyword, value, schema)

        return limited


def _check_pattern(validator: Any, pattern: str, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if validator.is_type(value, "string") and not Pattern(pattern).search(value):
        yield jsonschema.ValidationError(f"does not match {pattern!r}")


def _check_pattern_properties(
    validator: Any, properties: Mapping[str, Any], value: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(value, "object"):
        return
    for text, subschema in properties.items():
        pattern = Pattern(text)
        for name, part in value.items():
            if pattern.search(name):
                yield from validator.descend(part, subschema, path=name, schema_path=text)
