"""Slot solver: how an evaluation uses a model besides asking it once.

A solver receives the problems (prompts rows) and `ask`, which answers any number of rows at once, one text each, with
the model that is evaluated; it returns one text per problem. A row that it makes up needs an id of its own, on which
the random stream of its answer hangs. Nothing is trained.
"""

import re
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from learning.data.patterns import MatchTimeout, Pattern
from learning.data.rows import Row, read_rows
from learning.solvers.combinators import apply_to_all, concatenate, keep_matching, make_pairs, reduce_items
from learning.solvers.recursion import combine_tree, iterate_leaves, plan_split, take_apart
from learning.tools.retrieval import Shelf
from schemas.errors import StepError
from schemas.references import ChatRef

Ask = Callable[[list[Row]], list[str]]
WHOLE = re.compile(r"[+-]?\d{1,1000}")
"""A number with more digits takes Python too long to read."""
MAX_ITEMS = 1_000
"""Items that are crossed with each other."""


def lambda_rlm(
    rows: list[Row],
    ask: Ask,
    *,
    window: Annotated[int, Field(ge=1)],
    cost_input: Annotated[float, Field(gt=0)] = 1.0,
    cost_compose: Annotated[float, Field(gt=0)] = 100.0,
    border: Annotated[str, Field(min_length=1)] = "|",
    separator: str = ",",
    combine: Literal["total", "joined"] = "total",
    keep: str = ".*",
    pairs: bool = False,
) -> list[str]:
    """Recursion over a long prompt: split by a plan, one call per piece, the answers put together (λ-RLM, 2026).

    The question ends at the first `border` of the prompt; what follows is taken apart into pieces of at most `window`
    characters, cut after a `separator`, and the question is asked of each. Answers that `keep` does not match as a
    whole are left out; the others are added up (`total`) or joined by the separator (`joined`); `pairs` then crosses
    the items of the whole with each other. Raises StepError for a prompt without a border.
    """
    trees, prompts = [], []
    for row in rows:
        question, bar, body = row["prompt"][-1]["content"].partition(border)
        if not bar:
            raise StepError(f"solver lambda_rlm: the prompt of {row['id']} has no {border!r} after its question")
        trees.append(take_apart(body, plan_split(len(body), window, cost_input, cost_compose), separator))
        for i, piece in enumerate(iterate_leaves(trees[-1])):
            prompt = [*row["prompt"][:-1], {"role": "user", "content": f"{question}{border}{piece}"}]
            prompts.append(row | {"id": f"{row['id']}.{i}", "prompt": prompt})
    answers = iter(ask(prompts))
    pattern, operation = _pattern(keep), globals()[combine]
    texts = []
    for tree in trees:
        own = [
            keep_matching(partial(_is_match, pattern), [text.strip()])
            for text in islice(answers, sum(1 for _ in iterate_leaves(tree)))
        ]
        result = combine_tree(tree, iter(own), lambda parts: [operation(concatenate(parts), separator)])
        combined = operation(result, separator)
        texts.append(crossed(combined, separator) if pairs else combined)
    return texts


def _pattern(keep: str) -> Pattern:
    try:
        return Pattern(keep, re.DOTALL)
    except re.error as error:
        raise StepError(f"solver lambda_rlm: keep {keep!r}: {error}") from error


def _is_match(pattern: Pattern, text: str) -> bool:
    try:
        return pattern.fullmatch(text) is not None
    except MatchTimeout:
        return False


def total(texts: list[str], separator: str) -> str:
    """The sum of whole numbers; empty, which is no number, when one of them is none, or has over 1000 digits."""
    if keep_matching(lambda text: not WHOLE.fullmatch(text), texts):
        return ""
    return str(reduce_items(int.__add__, apply_to_all(int, texts), 0))


def joined(texts: list[str], separator: str) -> str:
    """The texts that are not empty, one after the other."""
    return separator.join(keep_matching(bool, texts))


def crossed(text: str, separator: str) -> str:
    """Every pair of two different items, as `a:b`; empty where there are more than `MAX_ITEMS`."""
    items = keep_matching(bool, text.split(separator))
    if len(items) > MAX_ITEMS:
        return ""
    return separator.join(f"{a}:{b}" for a, b in make_pairs(items, items) if a != b)


def retrieve(
    rows: list[Row],
    ask: Ask,
    *,
    data: ChatRef,
    k: Annotated[int, Field(ge=1)] = 2,
    grams: Annotated[int, Field(ge=1)] = 3,
) -> list[str]:
    """Put the k most similar solved examples of `data` before the prompt, as earlier turns; the nearest comes last.

    Similarity is the cosine of counts of `grams` characters. An example whose prompt is the problem itself is left out.
    """
    shelf = Shelf(read_rows(Path(data), "chat"), grams)
    prompts = []
    for row in rows:
        examples = reversed(shelf.nearest(row["prompt"][-1]["content"], k))
        turns = concatenate([*example["prompt"], *example["completion"]] for example in examples)
        prompts.append(row | {"prompt": [*turns, *row["prompt"]]})
    return ask(prompts)
