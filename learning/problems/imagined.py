"""Problems about what a model wrote, step by step, and conversations that it imagined, as episodes to learn from."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row, read_metadata, read_rows
from learning.problems.episodes import PlayedTurn, make_episode
from schemas.errors import StepError
from schemas.references import ChatRef

Count = Annotated[int, Field(ge=1)]


def described(*, task: str, text: str = "{task}", size: Count = 1) -> list[Row]:
    """Return `size` equal problems that are a task's description: `text` with {task}."""
    question = text.replace("{task}", task)
    name = hashlib.sha256(question.encode()).hexdigest()[:16]
    row = {"prompt": [{"role": "user", "content": question}], "answer": None, "family": "imagined", "metadata": None}
    return [{"id": f"{name}.{number}", **row} for number in range(size)]


def written_about(*, data: ChatRef, keep: str, text: str, task: str = "", repeats: Count = 1) -> list[Row]:
    """Return `repeats` problems about every completion of a chat artifact: `text` with what was written so far.

    The completion is kept under the name `keep` in the metadata, from where later problems take it, too:
    `text: "{task} person: {persona} talk:"`. Raise StepError for a name in `text` that nothing has written.
    """
    made = []
    for row in read_rows(Path(data), "chat"):
        known = read_metadata(row) | {keep: row["completion"][-1]["content"]}
        asked = {name for _, name, _, _ in Formatter().parse(text) if name}
        if unknown := sorted(asked - known.keys() - {"task"}):
            there = ", ".join(("task", *sorted(known)))
            raise StepError(f"written_about: nothing is called {{{unknown[0]}}} in `text`; there is: {there}")
        question = text.format(**{name: known.get(name, task) for name in asked})
        shown = {"prompt": [{"role": "user", "content": question}], "metadata": json.dumps(known)}
        for _ in range(repeats):
            name = f"{row['id']}.{len(made)}"
            made.append({"id": name, "answer": None, "family": row["family"], **shown})
    return made


def imagined_episodes(
    *,
    data: ChatRef,
    talk: str = "talk",
    agent: str = "agent:",
    partner: str = "partner:",
    good: str = "good",
    bad: str = "bad",
) -> list[Row]:
    """Return conversations that a model imagined and criticised as whole episodes, of which the last turn earns 1 or 0.

    The completions of `data` are critiques; the conversation is in the metadata under the name `talk`, a line for each
    turn, which begins with who speaks. Rows are as those of `episodes`. Left out are conversations in which two turns
    of one speaker follow each other, that do not begin with the partner and end with the agent, or whose critique
    begins with neither `good` nor `bad`. Without `agent` and `partner` lines alternate, after the prompt as what the
    partner says first. Raise StepError if none is left.
    """
    made, rows = [], read_rows(Path(data), "chat")
    for row in rows:
        verdict, said = row["completion"][-1]["content"].strip(), read_metadata(row).get(talk)
        text, opening = str(said or ""), str(row["prompt"][-1]["content"])
        marked = bool(agent or partner)
        turns = list(_split_talk(text, agent, partner) if marked else _alternate([opening, *text.splitlines()]))
        roles = [role for role, _ in turns]
        fits = bool(turns) and roles == ["user", "assistant"] * (len(turns) // 2)
        if not fits or not verdict.startswith((good, bad)):
            continue
        texts = [text for _, text in turns]
        answers = [*texts[2::2], ""]
        earned = [0.0] * (len(answers) - 1) + [float(verdict.startswith(good))]
        played = [PlayedTurn(*turn) for turn in zip(texts[1::2], answers, earned, strict=True)]
        opened = row | {"prompt": [{"role": "user", "content": texts[0]}]}
        made.append(make_episode(opened, str(row["id"]), played))
    if not made:
        raise StepError(
            f"imagined_episodes: none of {len(rows)} rows has a conversation with turns of `{partner}` and `{agent}`, "
            f"and a critique that begins with `{good}` or `{bad}`; look at the completions of the two steps before"
        )
    return made


def _alternate(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield lines as turns of partner and agent; one that nothing answers is left out."""
    for said, answered in zip(lines[::2], lines[1::2], strict=False):
        yield from (("user", said), ("assistant", answered))


def _split_talk(text: str, agent: str, partner: str) -> Iterator[tuple[str, str]]:
    """Yield role and text of each turn; a line without a speaker belongs to the turn before it."""
    role, lines = "", list[str]()
    for line in text.splitlines():
        begins = next((r for r, mark in (("user", partner), ("assistant", agent)) if line.startswith(mark)), "")
        if begins and role:
            yield role, "\n".join(lines).strip()
        if begins:
            role, lines = begins, [line.removeprefix(agent if begins == "assistant" else partner)]
        elif role:
            lines.append(line)
    if role:
        yield role, "\n".join(lines).strip()
