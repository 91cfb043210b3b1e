"""Configuration files and command lines as trees of plain values. Command lines are parsed, never executed."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.base import JsonObject
from schemas.errors import RecipeError
from schemas.importers.common.shell import VARIABLE, fill, join_sums, split_commands
from schemas.source.files import read_text
from schemas.source.parser import parse_text, parse_value
from schemas.source.tree import Mark, make_error

ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
LISTED = re.compile(r"(?:export\s+|local\s+|readonly\s+|declare\s+-a\s+)?([A-Za-z_]\w*)(\+?)=\((.*)\)", re.DOTALL)
OPENED = re.compile(r"\s*(?:export\s+|local\s+|readonly\s+|declare\s+-a\s+)?[A-Za-z_]\w*\+?=\((?!\()")
CONTINUED = re.compile(r"(?<=\s)\\\s+#.*$")
"""A backslash at the end of a line, with a comment after it."""
SPREAD = re.compile(r"\$\{(\w+)\[[@*]\]\}")
ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*](?::\d+)?\})")
"""The arguments of the script itself."""
OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w.\-/@]*)=(.*)", re.DOTALL)
GROUP = "(group)"
"""The key of a group's name, beside the keys that are in it."""
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
        place = Mark(file, number, 1)
        if listed := LISTED.fullmatch(line.strip()):
            words = [word for part in split_commands(listed[3], variables) for word in _split_words(part, place)]
            words = [part for word in words for part in _spread(word, variables, lists)]
            lists[listed[1]] = [*(lists.get(listed[1], []) if listed[2] else []), *words]
            continue
        if _set_variable(line, variables, lists, place):
            continue
        for simple in split_commands(line, variables):
            words = [part for word in _split_words(simple, place) for part in _spread(word, variables, lists)]
            if words and not _set_variable(simple, variables, lists, place):
                commands.append(read_command(words, place))
    best = max(commands, key=lambda command: len(command.tree), default=None)
    if best is None or not best.tree:
        advice = "give a YAML file, or a script with a command such as `python -m verl.trainer.main_ppo key=value`"
        raise make_error(Mark(file, 1, 1), "", "has no command with options", advice)
    return best


def _split_words(line: str, place: Mark) -> list[str]:
    """Return the words of a line, without quotes and comments. Raise RecipeError for an open quote."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise make_error(place, "", f"not a shell command: {error}", "close the quote") from None


def _set_variable(line: str, variables: dict[str, str], lists: Mapping[str, list[str]], place: Mark) -> bool:
    """Set the variable of a line that is an assignment; return whether it is one."""
    assigned = ASSIGNMENT.fullmatch(line.strip())
    words = [part for word in _split_words(line, place) for part in _spread(word, variables, lists)] if assigned else []
    if assigned is None or len(words) > 2 or not words[-1].startswith(f"{assigned[1]}="):
        return False
    variables[assigned[1]] = words[-1].partition("=")[2]
    return True


def _spread(word: str, variables: Mapping[str, str], lists: Mapping[str, list[str]]) -> list[str]:
    """Return a word with its variables written out, or the words of the list that it stands for (`${NAME[@]}`)."""
    match = SPREAD.fullmatch(word)
    if match and match[1] in lists:
        return lists[match[1]]
    filled = fill(word, variables)
    return [] if not filled and VARIABLE.fullmatch(word) else [filled]


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
    """Return the options of a command: `key=value`, `--key value`, `--key=value` and `--flag`.

    A variable among them that nothing sets is a key of its own, so that it is accounted for.
    """
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
        if ARGUMENTS.fullmatch(word) or word in (";", "&&", "|", "\\"):
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
        elif (given or flag is None) and tree and VARIABLE.fullmatch(word):
            tree[word] = True
        elif flag is not None:
            given.append(word)
        else:
            head.append(word)
    close()
    return Command(tuple(head), tree)


def parse_word(word: str, place: Mark) -> Any:
    """Return a word of a command line as a value: a number, a list `[a,b]`, a map `{a: b}`, or the text itself."""
    try:
        value = parse_value(word, place).plain()
    except RecipeError:
        return word
    return word if isinstance(value, dict) and not word.lstrip().startswith("{") else value


def set_path(tree: JsonObject, key: str, value: Any, place: Mark) -> None:
    """Set a dotted key of a tree. Raise RecipeError where a single value has keys below it.

    A word with keys below it is the group of Hydra's defaults that they are in: `optim=fsdp optim.lr=1e-5`.
    """
    *above, last = key.split(".")
    for part in above:
        below = tree.setdefault(part, {})
        if isinstance(below, str):
            below = tree[part] = {GROUP: below}
        if not isinstance(below, dict):
            raise make_error(place, key, f"`{part}` is a single value and has keys below it", "remove one of the two")
        tree = below
    if isinstance(tree.get(last), dict) and isinstance(value, dict | str):
        tree[last] = {**tree[last], **(value if isinstance(value, dict) else {GROUP: value})}
    else:
        tree[last] = value
