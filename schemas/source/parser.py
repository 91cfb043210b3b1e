"""YAML text to a tree of nodes with places, one pass over the parser's events.

Plain scalars follow the core schema of YAML 1.2: `1e-4` is a number, `yes` and `on` are words. What a recipe never
needs and an attacker does is refused before it costs anything: tags, deep nesting, aliases that explode, huge files.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from schemas.errors import RecipeError
from schemas.source.files import find_mark, read_text
from schemas.source.limits import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES
from schemas.source.tree import Mark, Node, join_path, make_error

OTHER_FILES = (".py", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".md", ".jinja", ".sh")
"""Suffixes of text files that recipes name, and that are given in place of a recipe by mistake."""
_LOADER = getattr(yaml, "CLoader", yaml.Loader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT = re.compile(r"[-+]?[0-9]{1,300}")
_OCTAL, _HEX = re.compile(r"0o[0-7]{1,300}"), re.compile(r"0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
_SPECIAL = {f"{s}.{w}": float(f"{s}inf") for s in ("", "+", "-") for w in ("inf", "Inf", "INF")}
_SPECIAL |= {w: float("nan") for w in (".nan", ".NaN", ".NAN")}
_CORE = {f"tag:yaml.org,2002:{t}" for t in ("str", "int", "float", "bool", "null", "map", "seq")} | {"!"}


def read_source(path: Path, name: str | None = None) -> Node:
    """Return the tree of a file; `name` is how errors call it. Raise RecipeError."""
    file = name or str(path)
    text = read_text(path, file)
    try:
        return parse_text(text, file)
    except RecipeError:
        if path.suffix.lower() not in OTHER_FILES:
            raise
        message = f"a file that ends in {path.suffix} is no recipe"
        raise make_error(
            Mark(file, 1, 1), "", message, "name the YAML file, which names data, models and rewards"
        ) from None


def parse_text(text: str, file: str, *, empty_keys: bool = False) -> Node:
    """Return the tree of a text whose top level is a map; `empty_keys` allows `{"": 0}`. Raise RecipeError."""
    root = parse_value(text, Mark(file, 1, 1), empty_keys=empty_keys)
    if root.value is None:
        raise make_error(Mark(file, 1, 1), "", "the recipe is empty", "start with `name:` and `stages:`")
    if not root.is_map:
        raise make_error(root.mark, "", "a recipe is a map of keys", "start with `name:` and `stages:`")
    return root


def parse_value(text: str, start: Mark, *, empty_keys: bool = False) -> Node:
    """Return the tree of any single YAML document. Raise RecipeError."""
    if odd := _UNPRINTABLE.search(text):
        raise make_error(
            find_mark(text, odd.start(), start),
            "",
            f"character U+{ord(odd[0]):04X} is not allowed",
            "remove it; in a double-quoted string it may be written as an escape",
        )
    builder = _Builder(start, empty_keys)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Mark(start.file, mark.line + 1, mark.column + 1) if mark else start
        reason = error.problem or "not YAML"
        raise make_error(place, "", f"not YAML: {reason}", _advise(reason)) from None
    except yaml.YAMLError as error:
        raise make_error(start, "", f"not YAML: {error}", "check the text around here") from None
    return builder.root or Node(None, start)


def _advise(reason: str) -> str:
    if "tab" in reason or "cannot start any token" in reason:
        return "indent with spaces, and quote values that start with @, ` or %"
    if "mapping values" in reason:
        return "`path:file` has no space after its colon; other values with `: ` need quotes; or check the indentation"
    if "expected ':'" in reason:
        return "write a space after the colon of a key, here or on the line before: `key: value`"
    return "check indentation, quotes and brackets here and on the line before"


@dataclass
class _Frame:
    """A collection that is still open."""

    mark: Mark
    anchor: str | None
    path: str
    items: Any
    key: str | None = None
    key_mark: Mark | None = None
    nodes: int = 1
    characters: int = 0
    bases: list[Node] = field(default_factory=list)


class _Builder:
    """Puts events together into nodes, without recursion."""

    def __init__(self, start: Mark, empty_keys: bool = False):
        self.start, self.empty_keys = start, empty_keys
        self.root: Node | None = None
        self.stack: list[_Frame] = []
        self.anchors: dict[str, tuple[Node, int, int]] = {}
        self.documents = 0

    def take(self, event: yaml.Event) -> None:
        """Add one event."""
        mark = Mark(self.start.file, event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise make_error(mark, "", "a recipe is one YAML document", "remove the `---` and what follows it")
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event, mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            frame = self.stack.pop()
            self._add(self._closed(frame), frame.anchor, frame.nodes, frame.characters)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event, mark)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise make_error(
                    mark, self._path(), f"no anchor `&{event.anchor}` before this", "or quote the asterisk"
                )
            node, nodes, characters = self.anchors[event.anchor]
            self._expect_key(mark, "")
            self._add(replace(node, mark=mark), None, nodes, characters)

    def _open(self, event: yaml.CollectionStartEvent, mark: Mark) -> None:
        self._refuse_tag(event.tag, mark)
        self._expect_key(mark, "")
        if len(self.stack) >= MAX_DEPTH:
            raise make_error(mark, "", f"nested more than {MAX_DEPTH} levels deep", "recipes need about eight")
        items: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Frame(mark, event.anchor, self._path(), items))

    def _scalar(self, event: yaml.ScalarEvent, mark: Mark) -> None:
        self._refuse_tag(event.tag, mark)
        frame = self.stack[-1] if self.stack else None
        if frame and isinstance(frame.items, dict) and frame.key is None:
            return self._key(frame, event.value, mark)
        plain = event.implicit[0] and event.tag in (None, "!")
        value = parse_scalar(event.value) if plain and event.tag is None else event.value
        if event.tag and event.tag.startswith("tag:") and not event.tag.endswith(":str"):
            value = parse_scalar(event.value)
        return self._add(Node(value, mark), event.anchor, 1, len(event.value))

    def _key(self, frame: _Frame, text: str, mark: Mark) -> None:
        if not text and not self.empty_keys:
            raise make_error(mark, frame.path, "a key is empty", "write a word before the colon")
        if text in frame.items:
            first = frame.items[text].where.line
            raise make_error(
                mark, join_path(frame.path, text), f"`{text}` is given twice", f"first on line {first}; keep one"
            )
        frame.key, frame.key_mark = text, mark

    def _add(self, node: Node, anchor: str | None, nodes: int, characters: int) -> None:
        if anchor:
            self.anchors[anchor] = (node, nodes, characters)
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        frame.nodes += nodes
        frame.characters += characters
        if frame.nodes > MAX_NODES:
            raise make_error(
                node.mark, frame.path, f"more than {MAX_NODES} values", "an alias explodes, or this is data"
            )
        if frame.characters > MAX_CHARACTERS:
            message = f"more than {MAX_CHARACTERS} characters"
            raise make_error(node.mark, frame.path, message, "an alias repeats a long text, or this is data")
        if isinstance(frame.items, list):
            frame.items.append(node)
        elif frame.key == "<<":
            self._base(frame, node)
            frame.key = None
        else:
            frame.items[frame.key] = replace(node, key=frame.key_mark)
            frame.key = None

    def _base(self, frame: _Frame, node: Node) -> None:
        bases = node.value if node.is_list else [node]
        if not all(base.is_map for base in bases):
            raise make_error(node.mark, frame.path, "`<<` takes a map, or a list of maps", "as `<<: *anchor`")
        frame.bases += bases

    def _closed(self, frame: _Frame) -> Node:
        items = frame.items
        for base in frame.bases:
            items = {**base.value, **items}
        return Node(items, frame.mark)

    def _expect_key(self, mark: Mark, path: str) -> None:
        if self.stack and isinstance(self.stack[-1].items, dict) and self.stack[-1].key is None:
            raise make_error(
                mark, self.stack[-1].path, "a key must be a word", "quote it, or check brackets and `${...}`"
            )

    def _path(self) -> str:
        if not self.stack:
            return ""
        frame = self.stack[-1]
        return join_path(frame.path, len(frame.items) if isinstance(frame.items, list) else frame.key or "")

    def _refuse_tag(self, tag: str | None, mark: Mark) -> None:
        if tag is not None and tag not in _CORE:
            short = tag.replace("tag:yaml.org,2002:", "!!")
            raise make_error(
                mark, self._path(), f"the tag `{short}` is not allowed", "recipes hold plain values: remove it"
            )


def parse_scalar(text: str) -> Any:
    """Return the value of a plain scalar by the core schema of YAML 1.2 (section 10.3.2)."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if text in _SPECIAL:
        return _SPECIAL[text]
    return float(text) if _FLOAT.fullmatch(text) and len(text) <= 300 else text
