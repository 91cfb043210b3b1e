"""Variables and whole-number arithmetic of shell scripts, written out; nothing is executed."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

NAME = re.compile(r"[A-Za-z_]\w*")
DEFAULT = re.compile(r"([A-Za-z_]\w*|\d+)(?::?[-=](.*))?", re.DOTALL)
SUM = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
UNSET = re.compile(r"\$\{?(\w+)")
MAX_VALUE = 20_000
"""Most characters of a word after its variables are written out."""
LARGEST = 10**15
"""Numbers beyond it stay as they are written."""
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def join_sums(line: str) -> str:
    """Return a line whose `$((a * b))` have no blanks, so that each of them is one word."""
    return SUM.sub(lambda match: "$((" + "".join(match[1].split()) + "))", line)


def fill(word: str, variables: Mapping[str, str]) -> str:
    """Return a word with variables, their defaults (`${A:-${B}}`) and sums written out.

    What the script does not set stays as it is written; `$HOME` is `~`, `$PWD` the current folder.
    """
    known = {"HOME": "~", "PWD": "."} | dict(variables)
    made, at = "", 0
    while at < len(word) and len(made) <= MAX_VALUE:
        text, at = _read(word, at, known)
        made += text
    return made[:MAX_VALUE]


def _read(word: str, at: int, known: Mapping[str, str]) -> tuple[str, int]:
    """Return what the text at a place comes to, and where the rest begins."""
    if word.startswith("$((", at) and (end := word.find("))", at)) > 0:
        number = _compute(fill(word[at + 3 : end], known), known)
        return (word[at : end + 2] if number is None else str(number)), end + 2
    if word.startswith("${", at) and (end := _find_end(word, at + 1)):
        match = DEFAULT.fullmatch(word[at + 2 : end - 1])
        if match is None:
            return word[at:end], end
        default = None if match[2] is None else fill(match[2].strip("\"'"), known)
        return known.get(match[1]) or default or word[at:end], end
    if word[at] == "$" and (name := NAME.match(word, at + 1)):
        return known.get(name[0], word[at : name.end()]), name.end()
    return word[at], at + 1


def _find_end(word: str, at: int) -> int:
    """Return the place after the brace that closes the one at `at`; 0 if none does."""
    depth = 0
    for place in range(at, len(word)):
        depth += {"{": 1, "}": -1}.get(word[place], 0)
        if depth == 0:
            return place + 1
    return 0


def _compute(text: str, known: Mapping[str, str]) -> int | None:
    """Return a sum of whole numbers; None for anything else."""
    try:
        return _evaluate(ast.parse(text, mode="eval").body, known)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, known: Mapping[str, str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value
    elif isinstance(node, ast.Name):
        number = int(known[node.id]) if node.id in known else int("")
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        number = OPERATORS[type(node.op)](_evaluate(node.left, known), _evaluate(node.right, known))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = -_evaluate(node.operand, known)
    else:
        raise ValueError(ast.dump(node)[:80])
    if abs(number) > LARGEST:
        raise ValueError("too large")
    return number


def find_unset(value: object) -> str | None:
    """Return the first variable of a text, or placeholder such as `<your-model>`, that nothing sets; None without."""
    if not isinstance(value, str):
        return None
    if match := UNSET.search(value):
        return f"${match[1]}"
    return value if value.startswith("<") and value.endswith(">") else None
