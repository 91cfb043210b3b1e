"""Terms, rewrite rules and proofs of equations by rewriting: `a*(b+0)` becomes `a*b` by the rule `x+0 = x`.

Terms have the operators `+` and `*` (which binds closer), letters, digits and brackets. In rules the letters u to z
stand for any term. A tactic names a rule, and perhaps the place where it is used: `drop` is its first place, `swap 2`
its second, places counted from the whole term inwards and from left to right.

The metadata of a row have a goal and the rules: `{"goal": "a*(b+0) = b*a", "rules": {"drop": "x+0 = x"}}`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from learning.data.rows import Row, read_metadata
from schemas.errors import StepError

Term = str | tuple[str, "Term", "Term"]
"""A letter or digit, or an operator with the terms on its left and right."""

TOKENS = re.compile(r"[a-z0-9+*()]|\s+")
LONGEST = 400
"""Characters of a term that is read."""
LARGEST = 24
"""Letters and digits of the largest term of a proof, if nothing else is said."""
MOST = 20_000
"""States that a search for a shortest proof looks at."""


class Rule(NamedTuple):
    """What a term that matches `left` may be replaced by."""

    left: Term
    right: Term


Rules = tuple[tuple[str, Rule], ...]
"""Rules by their names, in order."""


class Goal(NamedTuple):
    """An equation to be proved: `left` is rewritten until it is `right`."""

    left: Term
    right: Term
    rules: Rules

    def __str__(self) -> str:
        """Return the equation."""
        return f"{write_term(self.left)} = {write_term(self.right)}"


def parse_term(text: str) -> Term:
    """Return the term that a text writes. Raise ValueError if it writes none, or has over `LONGEST` characters."""
    tokens = [token for token in TOKENS.findall(text) if not token.isspace()]
    if len(text) > LONGEST or len("".join(tokens)) != len("".join(text.split())) or not tokens:
        raise ValueError(f"{text[:80]!r} is no term of at most {LONGEST} letters, digits, `+`, `*` and brackets")
    term, rest = _parse_sum(tokens, text)
    if rest:
        raise ValueError(f"{text!r}: `{rest[0]}` is not expected after {write_term(term)!r}")
    return term


def _parse_sum(tokens: list[str], text: str, operators: str = "+*") -> tuple[Term, list[str]]:
    """Return the term at the beginning, of operators that bind at least as closely as the first, and what follows."""
    if not operators:
        return _parse_atom(tokens, text)
    term, tokens = _parse_sum(tokens, text, operators[1:])
    while tokens and tokens[0] == operators[0]:
        right, tokens = _parse_sum(tokens[1:], text, operators[1:])
        term = (operators[0], term, right)
    return term, tokens


def _parse_atom(tokens: list[str], text: str) -> tuple[Term, list[str]]:
    if tokens and tokens[0] == "(":
        term, rest = _parse_sum(tokens[1:], text)
        if rest[:1] != [")"]:
            raise ValueError(f"{text!r}: a bracket is not closed")
        return term, rest[1:]
    if not tokens or tokens[0] in "+*)":
        raise ValueError(f"{text!r}: a letter, a digit or a bracket is missing")
    return tokens[0], tokens[1:]


def write_term(term: Term) -> str:
    """Return the text of a term, with no more brackets than it needs."""
    if isinstance(term, str):
        return term
    operator, left, right = term
    loose = () if operator == "+" else ("+",)
    texts = [
        f"({write_term(side)})" if not isinstance(side, str) and side[0] in brackets else write_term(side)
        for side, brackets in ((left, loose), (right, ("+", "*") if operator == "*" else ("+",)))
    ]
    return operator.join(texts)


def count_leaves(term: Term) -> int:
    """Return the number of letters and digits of a term."""
    return 1 if isinstance(term, str) else count_leaves(term[1]) + count_leaves(term[2])


def read_rules(texts: Mapping[str, str]) -> Rules:
    """Return rules written as `{"drop": "x+0 = x"}`. Raise ValueError for a rule that is none.

    A name is one word. The right side must not have variables that the left side lacks.
    """
    rules: list[tuple[str, Rule]] = []
    for name, text in texts.items():
        sides = text.split("=")
        if len(sides) != 2 or not re.fullmatch(r"[a-z]+", name):
            raise ValueError(f"rule `{name}: {text}`: write a name of small letters, and `left = right`")
        rule = Rule(parse_term(sides[0]), parse_term(sides[1]))
        if unbound := sorted(_list_variables(rule.right) - _list_variables(rule.left)):
            raise ValueError(f"rule `{name}: {text}`: `{unbound[0]}` is not on its left side")
        rules.append((name, rule))
    return tuple(rules)


def _list_variables(term: Term) -> set[str]:
    if isinstance(term, str):
        return {term} if "u" <= term <= "z" else set()
    return _list_variables(term[1]) | _list_variables(term[2])


def match_term(pattern: Term, term: Term, bound: Mapping[str, Term]) -> Mapping[str, Term] | None:
    """Return what the variables of a pattern stand for where a term matches it, given some; None if it does not."""
    if isinstance(pattern, str):
        if not "u" <= pattern <= "z":
            return bound if pattern == term else None
        if pattern not in bound:
            return {**bound, pattern: term}
        return bound if bound[pattern] == term else None
    if isinstance(term, str) or term[0] != pattern[0]:
        return None
    inside = match_term(pattern[1], term[1], bound)
    return None if inside is None else match_term(pattern[2], term[2], inside)


def fill_term(pattern: Term, bound: Mapping[str, Term]) -> Term:
    """Return a pattern with terms in the place of its variables."""
    if isinstance(pattern, str):
        return bound.get(pattern, pattern)
    return (pattern[0], fill_term(pattern[1], bound), fill_term(pattern[2], bound))


def rewrite(term: Term, rule: Rule) -> Iterator[Term]:
    """Yield what a rule makes of a term at each place where it can be used, the whole term first."""
    bound = match_term(rule.left, term, {})
    if bound is not None:
        yield fill_term(rule.right, bound)
    if not isinstance(term, str):
        operator, left, right = term
        yield from ((operator, changed, right) for changed in rewrite(left, rule))
        yield from ((operator, left, changed) for changed in rewrite(right, rule))


@lru_cache(maxsize=65_536)
def list_steps(term: Term, rules: Rules, largest: int) -> tuple[tuple[str, Term], ...]:
    """Return every tactic that changes a term, with what it makes of it; none that give over `largest` leaves."""
    return tuple(
        (name if place == 1 else f"{name} {place}", changed)
        for name, rule in rules
        for place, changed in enumerate(rewrite(term, rule), 1)
        if changed != term and count_leaves(changed) <= largest
    )


def apply_tactic(term: Term, rules: Rules, tactic: str, largest: int) -> Term | None:
    """Return what a tactic makes of a term; None if it is none, changes nothing or gives over `largest` leaves."""
    return dict(list_steps(term, rules, largest)).get(" ".join(tactic.split()))


@lru_cache(maxsize=65_536)
def find_proof(left: Term, right: Term, rules: Rules, largest: int) -> tuple[str, ...] | None:
    """Return the tactics of a shortest proof that makes `right` of `left`; None if none is among `MOST` states."""
    came: dict[Term, tuple[Term, str] | None] = {left: None}
    frontier = [left]
    while frontier and right not in came and len(came) < MOST:
        following: list[Term] = []
        for term in frontier:
            for tactic, changed in list_steps(term, rules, largest):
                if changed not in came:
                    came[changed] = (term, tactic)
                    following.append(changed)
        frontier = following
    return trace_proof(came, right) if right in came else None


def trace_proof(came: Mapping[Term, tuple[Term, str] | None], end: Term) -> tuple[str, ...]:
    """Return the tactics that lead to a term; `came` has the term and the tactic before each, None for the first."""
    tactics: list[str] = []
    while (before := came[end]) is not None:
        end, tactic = before
        tactics.append(tactic)
    return tuple(reversed(tactics))


def read_goal(row: Row) -> Goal:
    """Return the goal of a row. Raise StepError if it has none."""
    metadata = read_metadata(row)
    try:
        return _read_goal(json.dumps([metadata["goal"], metadata["rules"]]))
    except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise StepError(
            f"row {row.get('id')}: its metadata need a `goal` and `rules`, such as "
            f'{{"goal": "a*(b+0) = b*a", "rules": {{"drop": "x+0 = x"}}}}: {error}'
        ) from error


@lru_cache(maxsize=4096)
def _read_goal(text: str) -> Goal:
    goal, rules = json.loads(text)
    sides = goal.split("=")
    if len(sides) != 2:
        raise ValueError(f"{goal!r} is no equation")
    made = read_rules(rules)
    if not made:
        raise ValueError("there are no rules")
    return Goal(parse_term(sides[0]), parse_term(sides[1]), made)


def write_goal(goal: Goal, rules: Mapping[str, str]) -> dict[str, Any]:
    """Return what `read_goal` reads; `rules` are those of the goal as texts."""
    return {"goal": str(goal), "rules": dict(rules)}
