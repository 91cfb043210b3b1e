"""Imitation data from episodes of a teacher: a problem for each turn, with what the model would see as its prompt."""

import json
from collections.abc import Callable, Iterator

import numpy as np

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode, NextContext, PastTurn
from learning.lookup import Bound, Inner, ProblemsFunction, TeacherFunction, bind
from schemas.errors import StepError
from schemas.use import EnvUse


def turns(*, of: ProblemsFunction, by: TeacherFunction, env: EnvUse, seed: int = 0) -> list[Row]:
    """Play episodes of another generator's problems with the teacher `by`, and return a problem for every turn.

    Turn k has the conversation before it as its prompt, or what the environment's `context` makes of it, and an id that
    ends with `.k`. The stage's teacher writes the completion: the same teacher, or one that errs, without the error
    affecting later turns. With a `context` the metadata say which `turn` it is, memories counted, because the prompt
    need not show the earlier ones. Raise StepError if an episode does not end within `max_turns`, if the environment
    refers to a stage's output, or if the context counts tokens.
    """
    guide: Inner = by
    try:
        environment, context = build_environment(env, {}), None if env.context is None else bind(env.context, "context")
    except KeyError as port:
        raise StepError(
            f"problems turns: {port} refers to a stage's output; give the environment options only"
        ) from None
    if context is not None and "tokens" in context.asks:
        raise StepError(f"problems turns: context {context.name} counts tokens, and no model plays here; use another")
    made: list[Row] = []
    for place, row in enumerate(of()):
        rng = np.random.default_rng([seed, place])
        episode = environment.begin(row, seed + place)
        made += _play(row, episode, context, env.max_turns, lambda shown, rng=rng: guide.bound(shown, rng))
    return made


def _play(
    row: Row, episode: Episode, context: Bound | None, max_turns: int, write: Callable[[Row], str]
) -> Iterator[Row]:
    """Yield the problem as the teacher sees it at each turn. Raise StepError after `max_turns` actions."""
    past, messages, then = list[PastTurn](), list(row["prompt"]), NextContext()
    while True:
        shown = row | {"id": f"{row['id']}.{len(past)}", "prompt": messages} | _number(row, past, context)
        yield shown
        text, observation, is_memory = write(shown), "", then.asks == "memory"
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
        then = (
            NextContext() if context is None else context.ask(0, {"prompt": row["prompt"], "turns": past, "row": row})
        )
        message = {"role": "user", "content": observation if then.message is None else then.message}
        messages = then.messages or [*messages, {"role": "assistant", "content": text}, message]


def _number(row: Row, past: list[PastTurn], context: Bound | None) -> Row:
    """Return metadata with the number of a turn; nothing without a context, where the prompt shows all turns."""
    if context is None:
        return {}
    return {"metadata": json.dumps({**json.loads(row.get("metadata") or "{}"), "turn": len(past)})}
