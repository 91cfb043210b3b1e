"""Hindsight regeneration: a turn of a finished dialogue is rewritten, and models of both sides say what follows.

(Hong et al. 2024, arXiv:2411.05194.) Dialogues and rewrites are rows of chat, from stages or from files.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from learning.data.dialogues import exchange_roles, find_agent_turns, list_messages
from learning.data.patterns import MatchTimeout, Pattern
from learning.data.rows import Row, read_metadata, read_rows, write_rows
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import guest
from schemas.errors import StepError

TURN = r"(\d+)\s*:\s*(.+)"


@dataclass
class Branch:
    """A dialogue whose turn number `turn` of the agent is rewritten, as far as it has been said."""

    source: Row
    turn: int
    messages: list[Row]
    turns: int
    """Turns of the agent when it is complete: those of the source."""
    lost: str = ""
    """Why it is left out."""
    is_cut: bool = False
    """Whether it ends earlier, because a sampled turn is empty or did not end."""

    @property
    def is_open(self) -> bool:
        """Whether a turn of the agent is missing."""
        return not self.lost and len(find_agent_turns(self.messages)) < self.turns

    def end(self) -> None:
        """End with what the agent has said last."""
        *_, last = places = find_agent_turns(self.messages)
        self.messages, self.turns, self.is_cut = self.messages[: last + 1], len(places), True


def regenerate(
    context: Any,
    *,
    pattern: str = TURN,
    temperature: Annotated[float, Field(ge=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
) -> dict[str, float]:
    """Rewrite a turn of dialogues as hindsight says, and let two models say everything after it.

    Inputs are `dialogues`, `rewrites`, and the models `partner` (of `partner_talks`) and `agent`. A completion of
    `rewrites` is about the dialogue whose id its metadata have as `source`; the first match of `pattern` has the number
    of the agent's turn, from 1, and its new text (an empty number: the first turn). A dialogue of the output
    `regenerated` has the turns before the rewritten one, and then sampled ones until there are as many as before; it
    ends earlier, with a turn of the agent, where a sampled turn is empty or does not end. Its metadata have `source`
    and `hindsight_turn`, but no `rewards`: they are not known. Metrics: how many there are, how many end early (`cut`),
    and how many were left out because a rewrite cannot be read or changes nothing (`unread`, `same`), or a model has no
    room for the next turn (`too_long`). Raise StepError if none is left.
    """
    dialogues = {row["id"]: row for row in read_rows(context.input("dialogues"), "chat")}
    rewrites = read_rows(context.input("rewrites"), "chat")
    reader = _compile(pattern)
    branches = [_begin(row, dialogues, reader) for row in rewrites]
    sampling = Sampling(temperature, max_completion_length)
    partner, agent = (
        replace(guest(context.input(port)), sampling=sampling, seed=context.seed, step=step)
        for step, port in enumerate(("partner", "agent"))
    )
    while waiting := [branch for branch in branches if branch.is_open]:
        _say(partner, waiting, "user")
        _say(agent, [branch for branch in waiting if branch.is_open], "assistant")
    made = [_make_row(branch, number) for number, branch in enumerate(branches) if not branch.lost]
    lost = {why: sum(branch.lost == why for branch in branches) for why in ("unread", "same", "too_long")}
    if not made:
        raise StepError(f"regenerate: none of {len(rewrites)} rewrites led to a dialogue ({lost}); look at `rewrites`")
    write_rows(context.output("regenerated"), "chat", made)
    return {"regenerated": len(made), **lost, "cut": sum(branch.is_cut and not branch.lost for branch in branches)}


def _compile(pattern: str) -> Pattern:
    try:
        reader = Pattern(pattern)
    except re.error as error:
        raise StepError(f"regenerate: invalid pattern {pattern!r}: {error}") from error
    if reader.groups < 2:
        raise StepError(f"regenerate: `pattern` {pattern!r} needs two groups: the number of a turn, and its new text")
    return reader


def _begin(row: Row, dialogues: dict[str, Row], pattern: Pattern) -> Branch:
    """Return the dialogue of a rewrite up to its new turn. Raise StepError for one that is about no dialogue."""
    name = read_metadata(row).get("source")
    if name not in dialogues:
        raise StepError(
            f"regenerate: rewrite {row['id']}: its metadata have no `source` that is the id of a dialogue ({name!r}); "
            "ask about dialogues with `whole_talks`, or write the id there"
        )
    source = dialogues[name]
    messages = list_messages(source)
    places = find_agent_turns(messages)
    turn, text = _read_rewrite(str(row["completion"][-1]["content"]), pattern)
    if not text or not 1 <= turn <= len(places):
        return Branch(source, 0, [], len(places), lost="unread")
    place = places[turn - 1]
    same = text == messages[place]["content"].strip()
    begun = [*messages[:place], {"role": "assistant", "content": text}]
    return Branch(source, turn, begun, len(places), lost="same" if same else "")


def _read_rewrite(text: str, pattern: Pattern) -> tuple[int, str]:
    """Return the number of the turn and its new text; (0, "") for a text that does not match."""
    try:
        found = pattern.search(text)
    except MatchTimeout:
        return 0, ""
    if found is None:
        return 0, ""
    number, said = (found.group(1) or "").strip(), (found.group(2) or "").strip()
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 0 if number else 1), said


def _say(speaker: Sampler, branches: Sequence[Branch], role: str) -> None:
    """Sample the next turn of each dialogue from one side's model, and mark dialogues that end so."""
    asked = []
    for branch in branches:
        seen = branch.messages if role == "assistant" else exchange_roles(branch.messages)
        room = speaker.policy.max_length - speaker.sampling.max_new_tokens
        if len(speaker.encode(seen)) > room:
            branch.lost = "too_long"
        else:
            asked.append((branch, SampleRequest({"id": branch.source["id"], "prompt": seen})))
    samples = speaker.sample([request for _, request in asked]) if asked else []
    for (branch, _), sample in zip(asked, samples, strict=True):
        text = sample.text.strip()
        if text and sample.finish == "stop":
            branch.messages.append({"role": role, "content": text})
        else:
            branch.end()


def _make_row(branch: Branch, number: int) -> Row:
    known = {key: value for key, value in read_metadata(branch.source).items() if key != "rewards"}
    origin = {"source": branch.source["id"], "hindsight_turn": branch.turn}
    return branch.source | {
        "id": f"{branch.source['id']}.hindsight{number}",
        "prompt": branch.messages[:-1],
        "completion": branch.messages[-1:],
        "metadata": json.dumps(known | origin),
    }
