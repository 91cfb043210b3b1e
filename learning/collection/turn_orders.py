"""Turn orders: who speaks next in an episode of several roles, and what that role is shown (the slot `turn_order`).

A turn order may ask for `roles` (the names, in the order of the recipe), `turns` (`RoleTurn`s so far, oldest first),
`row` (the problem) and `rng`. It is called before every turn and returns a `NextTurn`. It is a function of these alone.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.patterns import MatchTimeout, Pattern
from learning.data.rows import Row, read_metadata
from learning.lookup import RewardFunction
from learning.samples.conversation import NextTurn, RoleTurn
from schemas.errors import StepError

CALL = r"\s*([A-Za-z_]\w*):(.*)"
"""The name of a role and a colon, then what it is asked."""
PLACES = re.compile(r"\{(role|text)\}")
CHECKED = re.compile(r"\{(documents|question)\}")
QUESTION = r"\s*([^\n]+\?)\s*"
"""One line that ends with a question mark."""


def in_order(
    roles: Sequence[str],
    turns: Sequence[RoleTurn],
    rng: np.random.Generator,
    *,
    rounds: Annotated[int, Field(ge=1)] = 1,
    text: str = "{role}: {text}",
    shows: Literal["unseen", "last"] = "unseen",
    until: str | None = None,
    chance: dict[str, Annotated[float, Field(ge=0, le=1)]] = {},  # noqa: B006 (never changed; a recipe reads it)
) -> NextTurn:
    """Let the roles speak in the order of the recipe, `rounds` times; each is shown what was said since its last turn.

    `text` is the form of what was said, one line per turn; with `shows: last` only the last turn is shown. A turn that
    contains the pattern `until` is the last one. `chance` is the probability that a role takes its turn, of roles that
    are sometimes left out. Raise StepError for a role that does not exist.
    """
    if unknown := sorted(chance.keys() - set(roles)):
        raise StepError(f"turn_order in_order: chance of {unknown[0]}: the roles are {', '.join(roles)}")
    if until is not None and turns and _contains(turns[-1].text, until):
        return NextTurn()
    for place in range(_count_places(roles, turns), rounds * len(roles)):
        role = roles[place % len(roles)]
        if role not in chance or rng.random() < chance[role]:
            shown = turns[-1:] if shows == "last" else _list_unseen(role, turns)
            return NextTurn(role, "\n".join(_show(turn, text) for turn in shown))
    return NextTurn()


def _count_places(roles: Sequence[str], turns: Sequence[RoleTurn]) -> int:
    """Return how many places of the order have passed, those of roles that were left out included."""
    place = 0
    for turn in turns:
        while roles[place % len(roles)] != turn.role:
            place += 1
        place += 1
    return place


def on_call(roles: Sequence[str], turns: Sequence[RoleTurn], *, call: str = CALL, text: str = "{text}") -> NextTurn:
    """Let the first role lead: a turn `name: request` of it calls another role, any other turn ends the episode.

    A role that is called is shown the request; the first role is shown the reply, in the form `text`. `call` matches an
    entire turn that is a call, with groups for role and request.
    """
    lead = roles[0]
    if not turns:
        return NextTurn(lead)
    last = turns[-1]
    if last.role != lead:
        return NextTurn(lead, _show(last, text))
    called, request = _parse_call(last.text, call)
    return NextTurn(called, request) if called in roles[1:] else NextTurn()


def attempts(
    roles: Sequence[str],
    turns: Sequence[RoleTurn],
    row: Row,
    *,
    n: Annotated[int, Field(ge=1)] = 4,
    shows: str | None = None,
) -> NextTurn:
    """Let the first role write a note, with which the second tries the problem `n` times, each time from the beginning.

    Every attempt is a sample of its own that is shown the note alone; those with one note are a group. With `shows` the
    first role is shown this entry of the problem's metadata, such as what happened in an earlier episode. Raise
    StepError for another number of roles, or a problem without that entry.
    """
    if len(roles) != 2:
        raise StepError(f"turn_order attempts: give two roles, not {len(roles)}: one that writes and one that tries")
    writer, solver = roles
    if not turns:
        shown = "" if shows is None else read_metadata(row).get(shows)
        if shown is None:
            raise StepError(f"turn_order attempts: row {row.get('id')} has no {shows!r} in its metadata; set `shows`")
        return NextTurn(writer, str(shown))
    return NextTurn(solver, turns[0].text, begins="sample") if len(turns) <= n else NextTurn()


def plan_and_repair(
    roles: Sequence[str],
    turns: Sequence[RoleTurn],
    *,
    until: str,
    rounds: Annotated[int, Field(ge=1)] = 2,
) -> NextTurn:
    """Let the first role plan once; then the second writes and the third checks, at most `rounds` times.

    The second role is shown the plan, and later what the third said of its work, each time after its first message
    alone. A check that contains the pattern `until` is the last one (StitchCUDA 2026). Raise StepError for another
    number of roles.
    """
    if len(roles) != 3:
        raise StepError(
            f"turn_order plan_and_repair: give three roles, not {len(roles)}: a planner, a writer, a checker"
        )
    planner, writer, checker = roles
    if not turns:
        return NextTurn(planner)
    last = turns[-1]
    if last.role == writer:
        return NextTurn(checker, last.text)
    if last.role == checker and (len(turns) > 2 * rounds or _contains(last.text, until)):
        return NextTurn()
    return NextTurn(writer, last.text, begins="context")


def by_decision(
    roles: Sequence[str],
    turns: Sequence[RoleTurn],
    *,
    choices: Annotated[dict[str, str], Field(min_length=1)],
    otherwise: str,
) -> NextTurn:
    """Let the first role decide who answers: `choices` maps what it says to a role, any other text is for `otherwise`.

    That role sees the problem in its own form and ends the episode. Raise StepError for a role that does not exist.
    """
    for name in (*choices.values(), otherwise):
        if name not in roles[1:]:
            raise StepError(f"turn_order by_decision: {name} is no role that can answer: {', '.join(roles[1:])}")
    if not turns:
        return NextTurn(roles[0])
    return NextTurn(choices.get(turns[0].text.strip(), otherwise)) if len(turns) == 1 else NextTurn()


def proposals(
    roles: Sequence[str],
    turns: Sequence[RoleTurn],
    row: Row,
    rng: np.random.Generator,
    *,
    right: RewardFunction,
    n: Annotated[int, Field(ge=1)] = 4,
    question: str = QUESTION,
    text: str = "{documents}\n{question}",
    noise: Annotated[int, Field(ge=0)] = 0,
    field: str = "documents",
) -> NextTurn:
    """Let the first role ask for the problem's answer, the second check the question, the third try it `n` times.

    The question is the group of the pattern `question`, which has to match the whole last message of the first role. It
    must not contain the answer. The second role is shown it in the form `text`, with all `documents` that the tools of
    the first role have returned, one per line, and `noise` other ones without the answer, drawn from the list `field`
    of the problem's metadata, in random order. Only if its reply earns at least 1 by the reward `right`, the third role
    is shown the question, each time from the beginning; those attempts are a group (Search Self-play, Lu et al. 2025).
    Raise StepError for another number of roles, and for a problem without an answer.
    """
    if row.get("answer") is None:
        raise StepError(f"turn_order proposals: row {row.get('id')} has no answer to ask for")
    if len(roles) != 3:
        raise StepError(f"turn_order proposals: give three roles, not {len(roles)}: who asks, who checks and who tries")
    asker, checker, solver = roles
    if not turns:
        return NextTurn(asker)
    answer, asked = str(row["answer"]), _read_question(turns[0], question)
    shown = list(dict.fromkeys(line for reply in turns[0].observed for line in reply.splitlines()))
    if not asked or _mentions(asked, answer) or not shown:
        return NextTurn()
    if len(turns) == 1:
        if noise:
            others = [str(one) for one in read_metadata(row).get(field) or [] if not _mentions(str(one), answer)]
            others = [one for one in others if one not in shown]
            shown += [others[int(i)] for i in rng.permutation(len(others))[:noise]]
            shown = [shown[int(i)] for i in rng.permutation(len(shown))]
        values = {"documents": "\n".join(shown), "question": asked}
        return NextTurn(checker, CHECKED.sub(lambda place: values[place[1]], text))
    (score,) = right(rows=[row], completions=[turns[1].text])
    verified = score is not None and score >= 1
    return NextTurn(solver, asked, begins="sample") if verified and len(turns) < n + 2 else NextTurn()


def _read_question(turn: RoleTurn, form: str) -> str:
    """Return the question in a turn; empty without one. Raise StepError for a `form` that is no pattern of one."""
    pattern = Pattern(form, re.DOTALL)
    if pattern.groups != 1:
        raise StepError(f"turn_order proposals: `question` {form!r} needs one group, which is the question")
    try:
        match = None if turn.truncated else pattern.fullmatch(turn.text)
    except MatchTimeout:
        return ""
    return "" if match is None else (match[1] or "").strip()


def _mentions(text: str, answer: str) -> bool:
    """Return whether a text contains the answer as whole words, whatever their case."""
    return re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w)", text, re.IGNORECASE) is not None


def shared_memory(
    roles: Sequence[str],
    turns: Sequence[RoleTurn],
    *,
    until: str,
    rounds: Annotated[int, Field(ge=1)] = 4,
    remembers: list[str] | None = None,
    last_only: list[str] = [],  # noqa: B006 (never changed; a recipe reads it)
    text: str = "{role}: {text}",
) -> NextTurn:
    """Let all roles but the last work in rounds on a memory that they share; then the last one concludes.

    The memory is what was said so far by the roles that it `remembers` (null: all), one line per turn in the form
    `text`. Every turn begins with the role's first message, which shows the memory as it is then, or to roles of
    `last_only` the last turn. After at most `rounds` rounds, or a last turn of a round that contains the pattern
    `until`, the last role speaks once. Raise StepError for a role that does not exist.
    """
    *workers, last = roles
    for name in (*(remembers or ()), *last_only):
        if name not in roles:
            raise StepError(f"turn_order shared_memory: there is no role {name}; roles: {', '.join(roles)}")
    if not workers:
        raise StepError("turn_order shared_memory: give at least two roles, the last of which concludes")
    if turns and turns[-1].role == last:
        return NextTurn()
    place, done = len(turns) % len(workers), len(turns) // len(workers)
    ended = done > 0 and place == 0 and (done == rounds or _contains(turns[-1].text, until))
    role = last if ended else workers[place]
    shown = turns[-1:] if role in last_only else [turn for turn in turns if turn.role in (remembers or roles)]
    return NextTurn(role, "\n".join(_show(turn, text) for turn in shown), begins="context")


def _list_unseen(role: str, turns: Sequence[RoleTurn]) -> list[RoleTurn]:
    """Return the turns since the last one of a role."""
    own = [place for place, turn in enumerate(turns) if turn.role == role]
    return list(turns[own[-1] + 1 :] if own else turns)


def _show(turn: RoleTurn, text: str) -> str:
    """Return a turn in the form of the recipe, in one pass: what a role wrote is never read as a place."""
    values = {"role": turn.role, "text": turn.text}
    return PLACES.sub(lambda place: values[place[1]], text)


def _contains(text: str, pattern: str) -> bool:
    try:
        return Pattern(pattern).search(text) is not None
    except MatchTimeout:
        return False


def _parse_call(text: str, call: str) -> tuple[str, str]:
    """Return the role and the request of a call; both are empty if the turn is none. Raise StepError for no pattern."""
    form = Pattern(call, re.DOTALL)
    if form.groups != 2:
        raise StepError(f"turn_order on_call: `call` {call!r} needs two groups, the role's name and the request")
    try:
        match = form.fullmatch(text)
    except MatchTimeout:
        return "", ""
    return ("", "") if match is None else ((match[1] or "").strip(), (match[2] or "").strip())
