"""Marks of progress put into an agent's program by a rule that no training changes.

Before a statement that calls what has a price a line is put that prints the price, and behind one that calls what is a
milestone a line that prints the milestone; both begin with a word that is drawn anew for every run. The agent writes
its program before that word exists: what it prints itself, in whatever words, is no mark.
(Yang et al. 2025, environment instrumentation: there a frozen language model inserts the lines.)
"""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """One line of the log."""

    name: str
    """Of a milestone, or of what was begun."""
    cost: float | None
    """Units of the clock; None: a milestone."""


class Rule(ast.NodeTransformer):
    """Puts the lines in."""

    def __init__(self, word: str, milestones: Mapping[str, Sequence[str]], costs: Mapping[str, float]) -> None:
        self.word, self.costs = word, costs
        self.milestones = {call: name for name, calls in milestones.items() for call in calls}

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        """A statement that calls something known, with its lines around it."""
        node = self.generic_visit(node)
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return):
            return node
        called = list(_called(node))
        before = [self._line(f"begin {name}") for name in called if name in self.costs]
        reached = dict.fromkeys(self.milestones[name] for name in called if name in self.milestones)
        return [*before, node, *(self._line(f"reach {name}") for name in reached)]

    def _line(self, text: str) -> ast.stmt:
        return ast.parse(f"print({f'{self.word} {text}'!r}, flush=True)").body[0]


def instrumented(
    program: str, word: str, *, milestones: Mapping[str, Sequence[str]], costs: Mapping[str, float]
) -> str:
    """The program with its lines; one that is not Python, or nested too deeply, stays as it is."""
    try:
        tree = Rule(word, milestones, costs).visit(ast.parse(program))
        return ast.unparse(ast.fix_missing_locations(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program


def marks(log: str, word: str, *, milestones: Collection[str], costs: Mapping[str, float]) -> list[Mark]:
    """The marks in what a program printed, in order; prices are those of the clock, whatever a line says."""
    found = []
    for said in log.splitlines():
        match said.split(" "):
            case [first, "begin", name] if first == word and name in costs:
                found.append(Mark(name, costs[name]))
            case [first, "reach", name] if first == word and name in milestones:
                found.append(Mark(name, None))
    return found


def _called(node: ast.AST) -> Iterator[str]:
    """Names of the functions that a statement calls, in the order in which they are called."""
    for child in ast.iter_child_nodes(node):
        yield from _called(child)
    if isinstance(node, ast.Call):
        target = node.func
        yield target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
