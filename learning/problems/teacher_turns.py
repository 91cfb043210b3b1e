"""Imitation data from episodes of a teacher: a problem for each turn, with what the model would see as its prompt."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode, NextContext, PastTurn
from learning.lookup import Bound, Inner, ProblemsFunction, TeacherFunction, TokenizerFunction, bind
from schemas.errors import StepError
from schemas.use import EnvUse

if TYPE_CHECKING:  # it takes seconds to import, and only contexts that count tokens need one
    from transformers import PreTrainedTokenizerBase


CountTokens = Callable[[list[Row], str], int]
"""Number of tokens of messages and of the turn after them."""


def turns(
    *,
    of: ProblemsFunction,
    by: TeacherFunction,
    env: EnvUse,
    tokenizer: TokenizerFunction | None = None,
    answers: Literal["problem", "turn"] = "problem",
    seed: int = 0,
) -> list[Row]:
    """Play episodes of another generator's problems with the teacher `by`, and return a problem for every turn.

    Turn k has the conversation before it as its prompt, or what the environment's `context` makes of it, and an id that
    ends with `.k`. The stage's teacher writes the completion: the same teacher, or one that errs, without the error
    affecting later turns. With a `context` the metadata say which `turn` it is, memories counted, how many `actions`
    came before it and what it `asks` for, because the prompt need not show the earlier ones; a context that counts
    tokens counts those of `tokenizer`, which is that of the model. With `answers: turn`
    the answer of a row is the teacher's turn instead of the problem's answer: actions can be compared with it. Raise
    StepError if an episode does not end within `max_turns` or its context, if the environment refers to a stage's
    output, or if a context that counts tokens has no tokenizer.
    """
    guide: Inner = by
    if env.inline is not None:
        raise StepError("problems turns: `env.inline` has no turns to cut, since all are one message; remove `inline`")
    try:
        environment, context = build_environment(env, {}), None if env.context is None else bind(env.context, "context")
    except KeyError as port:
        raise StepError(
            f"problems turns: {port} refers to a stage's output; give the environment options only"
        ) from None
    count = None if tokenizer is None else partial(_count_tokens, tokenizer())
    if context is not None and "tokens" in context.asks and count is None:
        raise StepError(
            f"problems turns: context {context.name} counts tokens; give `tokenizer`, that of the model that "
            "learns from these turns, as in its stage of kind init, or path:FOLDER"
        )
    made: list[Row] = []
    for place, row in enumerate(of()):
        rng = np.random.default_rng([seed, place])
        episode = environment.begin(row, seed + place)
        played = _play(row, episode, context, count, env.max_turns, lambda shown, rng=rng: guide.bound(shown, rng))
        made += [shown | {"answer": text} if answers == "turn" else shown for shown, text in played]
    return made


def _play(
    row: Row,
    episode: Episode,
    context: Bound | None,
    count: CountTokens | None,
    max_turns: int,
    write: Callable[[Row], str],
) -> Iterator[tuple[Row, str]]:
    """Yield the problem as the teacher sees it at each turn, and the turn; raise StepError if an episode has no end."""
    past, messages, then = list[PastTurn](), list(row["prompt"]), NextContext()
    while True:
        shown = row | {"id": f"{row['id']}.{len(past)}", "prompt": messages} | _number(row, past, then, context)
        text, observation, is_memory = write(shown), "", then.asks == "memory"
        yield shown, text
        if not is_memory:
            outcome = episode.step(text)
            if outcome.done:
                return
            observation = outcome.observation
        past.append(PastTurn(text, observation, is_memory))
        if sum(not turn.is_memory for turn in past) == max_turns:
            raise StepError(
                f"problems turns: the episode of {row['id']} does not end within {max_turns} turns; raise max_turns"
            )
        if context is not None:
            tokens = {} if count is None else {"tokens": count(messages, text)}
            then = context.ask(0, {"prompt": row["prompt"], "turns": past, "row": row} | tokens)
        if then.ends:
            raise StepError(
                f"problems turns: context {context.name if context else ''} ends the episode of {row['id']} after "
                f"{len(past)} turns, before the teacher has; give it more room"
            )
        message = {"role": "user", "content": observation if then.message is None else then.message}
        messages = then.messages or [*messages, {"role": "assistant", "content": text}, message]


def _count_tokens(tokenizer: "PreTrainedTokenizerBase", messages: list[Row], text: str) -> int:
    """Return the number of tokens of a context and of the turn that was written in it, with its end token."""
    from learning.data.chat import encode_completion, encode_prompt  # imports transformers

    turn = encode_completion(tokenizer, [{"role": "assistant", "content": text}])
    return len(encode_prompt(tokenizer, messages)) + len(turn)


def _number(row: Row, past: Sequence[PastTurn], then: NextContext, context: Bound | None) -> Row:
    """Return metadata about a turn: its number, the actions before it, what it asks for; nothing without a context."""
    if context is None:
        return {}
    place = {"turn": len(past), "actions": sum(not turn.is_memory for turn in past), "asks": then.asks}
    return {"metadata": json.dumps({**json.loads(row.get("metadata") or "{}"), **place})}
