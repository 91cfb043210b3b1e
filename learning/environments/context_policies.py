"""Context policies: what the model sees at its next turn of an episode (the slot `env.context`).

A policy is called after each of the environment's answers, and after each memory that the model has written. It may ask
for `prompt` (the messages of the problem), `turns` (`PastTurn`s, oldest first), `tokens` (length of the context so far,
with its prompt) and `row`. It returns a `NextContext`; its last turn always has an answer or is a memory. A policy is a
function of these alone, so that an episode that was interrupted continues with the same contexts.

In texts of the recipe `{question}` stands for the text of the problem's last message, `{memory}` for the model's last
memory or state, and `{observation}` for the environment's last answer.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.protocol import NextContext, PastTurn

PLACES = re.compile(r"\{(question|memory|observation)\}")
Messages = list[Row]


def window(prompt: Messages, turns: Sequence[PastTurn], *, keep: Annotated[int, Field(ge=1)] = 2) -> NextContext:
    """Show the problem and the last `keep` turns with their answers."""
    return NextContext([*prompt, *_list_messages(turns[-keep:])] if len(turns) > keep else None)


def newest_observation(
    prompt: Messages,
    turns: Sequence[PastTurn],
    *,
    keep: Annotated[int, Field(ge=1)] = 1,
    placeholder: str = "(omitted)",
) -> NextContext:
    """Show every turn, but only the newest `keep` answers; the earlier ones are replaced by a placeholder."""
    if len(turns) <= keep:
        return NextContext()
    earlier = [PastTurn(turn.text, placeholder) for turn in turns[:-keep]]
    return NextContext([*prompt, *_list_messages([*earlier, *turns[-keep:]])])


def state(
    prompt: Messages,
    turns: Sequence[PastTurn],
    *,
    tag: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None,
    text: str = "{question}\n{memory}\n{observation}",
) -> NextContext:
    """Show the problem, the model's latest state and the last answer: every turn rewrites the state.

    The state is the part of a turn between `<tag>` and `</tag>`, the last one that the model wrote; with tag null it is
    the whole last turn. A turn without the tag leaves the state as it was.
    """
    memory = turns[-1].text if tag is None else _find_tagged(turns, tag)
    return NextContext(_fill(prompt, text, memory, turns[-1].observation))


def memory(
    prompt: Messages,
    turns: Sequence[PastTurn],
    *,
    ask: str = "{question}\nMemory: {memory}\nNew: {observation}\nUpdate the memory.",
    text: str = "{question}\nMemory: {memory}",
) -> NextContext:
    """Show the problem and a memory, which the model rewrites after each answer in a turn of its own.

    That turn sees the problem, the old memory and the answer (`ask`); the next action sees only the problem and the new
    memory (`text`).
    """
    last = turns[-1]
    if last.is_memory:
        return NextContext(_fill(prompt, text, last.text, ""))
    return NextContext(_fill(prompt, ask, _find_memory(turns), last.observation), asks="memory")


def summary(
    prompt: Messages,
    turns: Sequence[PastTurn],
    tokens: int,
    *,
    budget: Annotated[int, Field(ge=1)],
    limit: Annotated[int, Field(ge=0)] | None = None,
    ask: str = "{observation}\nSummarise what matters so far.",
    text: str = "{question}\nSummary: {memory}\n{observation}",
) -> NextContext:
    """Show everything until the context has `budget` tokens; then the model writes a summary, which replaces it.

    The summary is written at the end of the full context (`ask`). The next context is the problem, the summary and the
    last answer (`text`), and grows again. After `limit` summaries (null: without limit) the next full context ends the
    episode as truncated.
    """
    last = turns[-1]
    if last.is_memory:
        observation = next((turn.observation for turn in reversed(turns) if not turn.is_memory), "")
        return NextContext(_fill(prompt, text, last.text, observation))
    if tokens < budget:
        return NextContext()
    if limit is not None and sum(turn.is_memory for turn in turns) >= limit:
        return NextContext(ends=True)
    return NextContext(message=_replace(ask, prompt, _find_memory(turns), last.observation), asks="memory")


def _list_messages(turns: Sequence[PastTurn]) -> Messages:
    """Return turns as messages of the assistant and the user."""
    pairs = ((("assistant", turn.text), ("user", turn.observation)) for turn in turns)
    return [{"role": role, "content": content} for pair in pairs for role, content in pair]


def _find_tagged(turns: Sequence[PastTurn], tag: str) -> str:
    """Return the text between tags in the last turn that has them; empty if none has."""
    for turn in reversed(turns):
        _, opening, rest = turn.text.rpartition(f"<{tag}>")
        inside, closing, _ = rest.partition(f"</{tag}>")
        if opening and closing:
            return inside
    return ""


def _find_memory(turns: Sequence[PastTurn]) -> str:
    """Return the last memory; empty if there is none."""
    return next((turn.text for turn in reversed(turns) if turn.is_memory), "")


def _fill(prompt: Messages, text: str, memory: str, observation: str) -> Messages:
    """Return the prompt with the filled-in text as its last message."""
    return [*prompt[:-1], {**prompt[-1], "content": _replace(text, prompt, memory, observation)}]


def _replace(text: str, prompt: Messages, memory: str, observation: str) -> str:
    """Return the text with its places filled in, in one pass: what the model wrote is never read as a place."""
    values = {"question": str(prompt[-1].get("content") or ""), "memory": memory, "observation": observation}
    return PLACES.sub(lambda place: values[place[1]], text)
