"""Configuration files and command lines as trees of plain values. Command lines are parsed, never executed."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.base import JsonObject
from schemas.errors import RecipeError
from schemas.importers.common.shell import fill, join_sums
from schemas.source.files import read_text
from schemas.source.parser import parse_text, parse_value
from schemas.source.tree import Mark, make_error

ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
LISTED = re.compile(r"(?:export\s+|local\s+|readonly\s+|declare\s+-a\s+)?([A-Za-z_]\w*)(\+?)=\((.*)\)", re.DOTALL)
OPENED = re.compile(r"\s*(?:export\s+|local\s+|readonly\s+|declare\s+-a\s+)?[A-Za-z_]\w*\+?=\((?!\()")
CONTINUED = re.compile(r"(?<=\s)\\\s+#.*$")
"""A backslash at the end of a line, with a comment after it."""
SPREAD = re.compile(r"\$\{(\w+)\[[@*]\]\}")
OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w.\-/@]*)=(.*)", re.DOTALL)
FLAG = re.compile(r"--?([A-Za-z][\w.\-]*)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command line: its words before the first option, and its options as a tree."""

    words: tuple[str, ...]
    tree: JsonObject


@dataclass(frozen=True)
class Config:
    """A configuration: where it stands, its tree, and the words of its command if it is one."""

    file: str
    folder: Path
    tree: JsonObject
    words: tuple[str, ...] = field(default=())


def read_config(path: Path) -> Config:
    """Return a YAML or JSON file, or the command with the most options of a shell script. Raise RecipeError."""
    text = read_text(path, str(path))
    if path.suffix in (".sh", ".bash") or text.startswith("#!"):
        command = find_command(text, str(path))
        return Config(str(path), path.resolve().parent, command.tree, command.words)
    tree = parse_text(text, str(path), empty_keys=True).plain()
    return Config(str(path), path.resolve().parent, tree)


def find_command(text: str, file: str) -> Command:
    """Return the command with the most options. Raise RecipeError if there is none, or for an open quote."""
    variables: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    commands: list[Command] = []
    for number, written in _join_lines(text):
        line = join_sums(written)
        listed = LISTED.fullmatch(line.strip())
        try:
            words = shlex.split(listed[3] if listed else line, comments=True)
        except ValueError as error:
            raise make_error(Mark(file, number, 1), "", f"not a shell command: {error}", "close the quote") from None
        words = [part for word in words for part in _spread(word, variables, lists)]
        assigned = ASSIGNMENT.fullmatch(line.strip())
        if listed:
            lists[listed[1]] = [*(lists.get(listed[1], []) if listed[2] else []), *words]
        elif assigned and len(words) <= 2 and words[-1].startswith(f"{assigned[1]}="):
            variables[assigned[1]] = words[-1].partition("=")[2]
        elif words:
            commands.append(read_command(words, Mark(file, number, 1)))
    best = max(commands, key=lambda command: len(command.tree), default=None)
    if best is None or not best.tree:
        advice = "give a YAML file, or a script with a command such as `python -m verl.trainer.main_ppo key=value`"
        raise make_error(Mark(file, 1, 1), "", "has no command with options", advice)
    return best


def _spread(word: str, variables: Mapping[str, str], lists: Mapping[str, list[str]]) -> list[str]:
    """Return a word with its variables written out, or the words of the list that it stands for (`${NAME[@]}`)."""
    match = SPREAD.fullmatch(word)
    return lists[match[1]] if match and match[1] in lists else [fill(word, variables)]


def _join_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield the lines of a script with their numbers; a backslash at its end, or an open quote, continues a line."""
    held, start = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        start = start if held else number
        bare = CONTINUED.sub(r"\\", line.rstrip())
        if bare.endswith("\\") and not bare.lstrip().startswith("#"):
            held += bare[:-1] + " "
            continue
        if held and bare.lstrip().startswith("#"):
            continue
        held += line
        try:
            bare = " ".join(shlex.split(held, comments=True))
            is_open = OPENED.match(held) is not None and bare.count("(") > bare.count(")")
        except ValueError:
            is_open = True
        if is_open:
            held += "\n"
            continue
        yield start, held
        held = ""
    if held.strip():
        yield start, held


def read_command(words: list[str], place: Mark) -> Command:
    """Return the options of a command: `key=value`, `--key value`, `--key=value` and `--flag`."""
    tree: JsonObject = {}
    head: list[str] = []
    flag: str | None = None
    given: list[str] = []

    def close() -> None:
        if flag is not None:
            values = [parse_word(word, place) for word in given]
            set_path(tree, flag, True if not values else values[0] if len(values) == 1 else values, place)

    for word in words:
        named, override = FLAG.fullmatch(word), OVERRIDE.fullmatch(word)
        if word in ("$@", "${@}", "$*", ";", "&&", "|", "\\"):
            continue
        is_script = word.endswith(".py") and "=" not in word
        is_script = is_script and (bool(given) or not any(w.endswith(".py") for w in head))
        if word == "-m" or (head[-1:] == ["-m"] and flag is None) or is_script:
            close()
            flag = None
            head.append(word)
            continue
        if named and not re.fullmatch(r"-\d.*", word):
            close()
            flag, given = named[1].replace("-", "_"), [] if named[2] is None else [named[2]]
        elif override and (flag is None or "." in override[1]) and (tree or flag or "." in override[1] or head):
            close()
            flag = None
            set_path(tree, override[1], parse_word(override[2], place), place)
        elif flag is not None:
            given.append(word)
        else:
            head.append(word)
    close()
    return Command(tuple(head), tree)


def parse_word(word: str, place: Mark) -> Any:
    """Return a word of a command line as a value: a number, a list `[a,b]`, or the text itself."""
    try:
        return parse_value(word, place).plain()
    except RecipeError:
        return word


def set_path(tree: JsonObject, key: str, value: Any, place: Mark) -> None:
    """Set a dotted key of a tree. Raise RecipeError where a single value has keys below it."""
    *above, last = key.split(".")
    for part in above:
        below = tree.setdefault(part, {})
        if not isinstance(below, dict):
            raise make_error(place, key, f"`{part}` is a single value and has keys below it", "remove one of the two")
        tree = below
    if isinstance(value, dict) and isinstance(tree.get(last), dict):
        tree[last] = {**tree[last], **value}
    else:
        tree[last] = value
