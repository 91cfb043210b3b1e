"""A recipe in the making: stages whose keys remember which key of the other tool they come from."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from schemas.importers.common.leaves import Leaves, show
from schemas.source.parser import parse_scalar
from schemas.stages.union import KINDS

WIDTH = 100_000


@dataclass(frozen=True)
class Line:
    """A value of a stage, and the key that it comes from."""

    value: Any
    source: str


@dataclass
class StageDraft:
    """A stage in the making."""

    name: str
    kind: str
    leaves: Leaves
    lines: dict[str, Line] = field(default_factory=dict)

    def put(self, ours: str, value: Any, source: str) -> None:
        """Set a key; `source` is the comment beside it."""
        self.lines[ours] = Line(value, source)

    def get(self, ours: str, default: Any = None) -> Any:
        """Return a value that is set."""
        return self.lines[ours].value if ours in self.lines else default

    def copy(
        self, theirs: str, ours: str, convert: Callable[[Any], Any] = lambda value: value, default: Any = None
    ) -> Any:
        """Take a key over, or state the tool's `default` where the input has none; return the value in the recipe.

        A value that `convert` refuses with ValueError is recorded as not supported, with its reason.
        """
        if not self.leaves.has(theirs):
            self.leaves.account(theirs, "harmless", "is null: the default")
            if default is not None:
                self.put_default(theirs, ours, default)
            return self.get(ours, default)
        try:
            value = convert(self.leaves.get(theirs))
        except (ValueError, TypeError) as error:
            self.leaves.account(theirs, "not supported", f"{error}; set stages.{self.name}.{ours} yourself")
            return self.get(ours, default)
        self.leaves.mapped(theirs, f"{self.name}.{ours}", "" if value == self.leaves.get(theirs) else show(value))
        self.put(ours, value, theirs)
        return value

    def put_default(self, theirs: str, ours: str, value: Any) -> None:
        """Write a default of the tool that differs from the kind's own."""
        own = KINDS[self.kind].model_fields[ours].default
        if value != own or ours == "learning_rate":
            own_text = "the usual one for what is trained" if ours == "learning_rate" else show(own)
            self.leaves.state_default(theirs, value, f"{own_text}; the recipe says {self.name}.{ours}: {show(value)}")
            self.put(ours, value, f"default of {theirs}")


@dataclass
class Draft:
    """A recipe in the making."""

    leaves: Leaves
    name: str
    seed: Line | None = None
    stages: dict[str, StageDraft] = field(default_factory=dict)

    def stage(self, name: str, kind: str) -> StageDraft:
        """Add a stage."""
        self.stages[name] = StageDraft(name, kind, self.leaves)
        return self.stages[name]

    def write(self, tool: str) -> str:
        """Return the recipe as YAML, with the source of each value in a comment."""
        lines = [f"# Imported from {tool}; the comments name its keys.", "schema_version: 1", f"name: {self.name}"]
        if self.seed is not None:
            lines.append(f"seed: {dump(self.seed.value)}{_comment(self.seed.source)}")
        lines.append("stages:")
        for stage in self.stages.values():
            lines += [f"  {stage.name}:", f"    kind: {stage.kind}"]
            for key, line in stage.lines.items():
                lines += _write_line(key, line)
        return "\n".join(lines) + "\n"


def _write_line(key: str, line: Line) -> list[str]:
    value = line.value
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [f"    {key}:{_comment(line.source)}", *(f"      - {dump(item)}" for item in value)]
    return [f"    {key}: {dump(value)}{_comment(line.source)}"]


def _comment(source: str) -> str:
    return f"  # {' '.join(source.split())}" if source else ""


def dump(value: Any) -> str:
    """Return a value as YAML on one line, with `${` escaped."""
    text = yaml.safe_dump(_escape(value), default_flow_style=True, width=WIDTH, sort_keys=False, allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...").rstrip("\n")
    return json.dumps(_escape(value), ensure_ascii=False) if "\n" in text or _reads_otherwise(value) else text


def _reads_otherwise(value: Any) -> bool:
    """Return whether a text such as `1e-4` is a number in YAML 1.2, which PyYAML writes without quotes."""
    return isinstance(value, str) and not isinstance(parse_scalar(value), str)


def _escape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return value.replace("${", "$${") if isinstance(value, str) else value
