"""Variables and whole-number arithmetic of shell scripts, written out; nothing is executed."""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Mapping

NAME = re.compile(r"[A-Za-z_]\w*")
DEFAULT = re.compile(r"([A-Za-z_]\w*|\d+)(?::?[-=](.*))?", re.DOTALL)
PLAIN = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
"""A variable without a default."""
VARIABLE = re.compile(r"\$(?:\w+|\{[^{}]*\})")
"""A word that is a variable and nothing else."""
REDIRECTION = re.compile(r"(?<=\s)(?:\d|&)?>{1,2}\s*(?:&\d|&?[^\s&|;]+)")
CONNECTOR = re.compile(r"&&|\|\|?|;|&")
OPEN_ASSIGNMENT = re.compile(r"\s*(?:(?:export|local|readonly)\s+)?[A-Za-z_]\w*=[^\s;&|]*")
"""The beginning of an assignment, whose value a shell does not split into words."""
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
    made, at = "", 0
    while (start := line.find("$((", at)) >= 0 and (end := _find_end(line, start + 1)):
        made += line[at:start] + "".join(line[start:end].split())
        at = end
    return made + line[at:]


def split_commands(line: str, variables: Mapping[str, str]) -> list[str]:
    """Return the simple commands of a line: without redirections, and with variables that hold several words as these.

    So a shell reads them: an unquoted `$OPTIONS` is the words of its value, a quoted one is one word.
    """
    commands, made, at, quote = [], "", 0, ""
    while at < len(line):
        if line[at] == "\\" and quote != "'":
            step, text = 2, line[at : at + 2]
        elif line[at] in ("'", '"') and quote in ("", line[at]):
            quote, step, text = "" if quote else line[at], 1, line[at]
        elif quote:
            step, text = 1, line[at]
        elif line[at] == "#" and (not made or made[-1].isspace()):
            step, text = len(line[at:].partition("\n")[0]), ""
        elif line.startswith("$(", at) and (end := _find_end(line, at + 1)):
            is_output = OPEN_ASSIGNMENT.fullmatch(made) and line[at + 2] != "("  # the variable is what a command prints
            step, text = end - at, f" {line[at + 2 : end - 1]}" if is_output else shlex.quote(line[at:end])
        elif line[at] == "$" and OPEN_ASSIGNMENT.fullmatch(made):
            step, text = 1, line[at]
        elif (match := PLAIN.match(line, at)) and len(words := variables.get(match[1] or match[2], "").split()) > 1:
            step, text = len(match[0]), " ".join(shlex.quote(word) for word in words)
        elif match := REDIRECTION.match(line, at):
            step, text = len(match[0]), ""
        elif match := CONNECTOR.match(line, at):
            commands.append(made)
            made, step, text = "", len(match[0]), ""
        else:
            step, text = 1, line[at]
        made, at = made + text, at + step
    return [command for command in (*commands, made) if command.strip()]


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
    if word.startswith("$((", at) and (end := _find_end(word, at + 1)):
        number = _compute(fill(word[at + 3 : end - 2], known), known)
        return (word[at:end] if number is None else str(number)), end
    if word.startswith("${", at) and (end := _find_end(word, at + 1)):
        match = DEFAULT.fullmatch(word[at + 2 : end - 1])
        if match is None:
            return word[at:end], end
        default = word[at:end] if match[2] is None else fill(match[2].strip("\"'"), known)
        return known.get(match[1]) or default, end
    if word[at] == "$" and (name := NAME.match(word, at + 1)):
        return known.get(name[0], word[at : name.end()]), name.end()
    return word[at], at + 1


def _find_end(word: str, at: int) -> int:
    """Return the place after the bracket that closes the one at `at`; 0 if none does."""
    depth, (opening, closing) = 0, "()" if word[at] == "(" else "{}"
    for place in range(at, len(word)):
        depth += (word[place] == opening) - (word[place] == closing)
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
