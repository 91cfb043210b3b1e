"""Questions of two look-ups about small encyclopedias, and an expert who thinks before it acts."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.data.rows import read_metadata as read_notes
from learning.data.thought_lines import split_lines
from learning.text_game.rows import replay
from learning.text_game.solver import solve
from learning.text_game.world import list_actions
from learning.toy_tasks.atlas import RELATIONS, make_atlas
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row
from schemas.errors import StepError

FACT = re.compile(r"(\w+) (\w+) (\w+)")
"""A sentence of a page: town, relation, value."""
DRAWS = 100
"""Draws per row after which there are too few questions."""


def page_questions(
    *,
    size: Size,
    split: Split,
    seed: int = 0,
    towns: Annotated[int, Field(ge=4, le=300)] = 12,
    worlds: Annotated[int, Field(ge=1)] = 1,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate questions such as `river of twin of bam?` about a world of `towns`, each with a page of four facts.

    A question is about one of `worlds` worlds; the metadata hold its `pages`, the town where the search starts, and the
    relations to follow. Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, split == "test"])

    def draw(rows: dict[str, Row]) -> Row | None:
        world = int(rng.integers(worlds))
        pages: dict[str, list[str]] = {}
        facts: dict[tuple[str, str], str] = {}
        for town, relation, value in make_atlas(towns, world):
            pages.setdefault(town, []).append(f"{town} {relation} {value}")
            facts[town, relation] = value
        start, last = str(rng.choice(list(pages))), str(rng.choice(RELATIONS))
        text = f"{last} of twin of {start}?"
        notes = {"pages": pages, "start": start, "relations": ["twin", last]}
        row = make_row("pages", text, facts[facts[start, "twin"], last], notes, salt=f"pages {towns} {world}")
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, DRAWS * size, "page_questions", split, "raise `towns` or `worlds`")


def thinker(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next turn of an expert in the environment `react`: a thought and the action that follows from it.

    In a row of `page_questions` it reads what it was shown; at the `error_rate` it looks up another relation. In a text
    game the thought is what to do next besides walking; at the `error_rate` the action is another possible one. Raise
    StepError for other rows.
    """
    notes = read_notes(row)
    if "game" in notes:
        return _think_in_game(row, rng, error_rate)
    if "relations" not in notes:
        raise StepError(f"teacher thinker: row {row['id']} is neither of `page_questions` nor a text game")
    return _think_of_pages(notes, row["prompt"], rng, error_rate)


def page_reader(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next action of `thinker` alone, for the environment `pages`: `search bam` or `finish zed`.

    Raise StepError for a row that is not of `page_questions`.
    """
    acted = [
        {**message, "content": f"Action: {message['content']}"} if message["role"] == "assistant" else message
        for message in row["prompt"]
    ]
    (kind, text) = split_lines(thinker(row | {"prompt": acted}, rng, error_rate=error_rate))[-1]
    return f"finish {text}" if kind == "Answer" else text


def _think_of_pages(notes: Row, messages: Sequence[Row], rng: np.random.Generator, error_rate: float) -> str:
    relations, town, found, known = notes["relations"], str(notes["start"]), 0, ""
    opened = looked = False
    for message in messages[1:]:
        if message["role"] == "assistant":
            looked = dict(split_lines(str(message["content"]))).get("Action", "").startswith("lookup")
            continue
        fact = FACT.fullmatch(str(message["content"]))
        if fact is None:
            return f"Thought: I do not know\nAnswer: {town}"
        opened = not (looked or fact[2] == relations[found])
        if not opened:
            known, town, found = f"{fact[2]} of {fact[1]} is {fact[3]}", fact[3], found + 1
    if found == len(relations):
        return f"Thought: {known}\nAnswer: {town}"
    wanted = relations[found]
    if not opened:
        return f"Thought: {', '.join([*([known] if known else []), f'find {wanted} of {town}'])}\nAction: search {town}"
    if rng.random() < error_rate:
        wanted = str(rng.choice([other for other in RELATIONS[1:] if other != wanted]))
    return f"Thought: look for {wanted}\nAction: lookup {wanted}"


def _think_in_game(row: Row, rng: np.random.Generator, error_rate: float) -> str:
    def strip(message: Any) -> Row:
        return {**message, "content": dict(split_lines(str(message["content"]))).get("Action", "")}

    plain = [strip(message) if message["role"] == "assistant" else message for message in row["prompt"]]
    world, state = replay(row | {"prompt": plain})
    plan = solve(world, state)
    if not plan:
        raise StepError(f"teacher thinker: row {row['id']}: its game is over after the turns in its prompt")
    aim = next(action for action in plan if not action.startswith("go "))
    others = [action for action in list_actions(world, state) if action != plan[0]]
    errs = bool(others) and rng.random() < error_rate
    return f"Thought: {aim}\nAction: {others[int(rng.integers(len(others)))] if errs else plan[0]}"
