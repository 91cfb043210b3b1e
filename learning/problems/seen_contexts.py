"""Problems of turns as a context policy shows them."""

from typing import TYPE_CHECKING

from learning.data.rows import Row
from learning.environments.protocol import PastTurn
from learning.lookup import Inner, ProblemsFunction
from schemas.errors import StepError
from schemas.use import ContextUse

if TYPE_CHECKING:
    ContextFunction = Inner
else:
    ContextFunction = ContextUse
"""Option of a function: a context policy, which it gets bound."""


def seen_contexts(*, of: ProblemsFunction, context: ContextFunction) -> list[Row]:
    """Return the problems of `turns` with the prompts that a context policy makes of their conversations.

    `turns` with a `context` of its own hides earlier turns from the teacher, too; here the teacher, who has written the
    answers (`answers: turn`), has seen them. Raise StepError for a policy that counts tokens, asks for a memory or ends
    an episode, and for rows that are not those of `turns`.
    """
    policy, generator = context.bound, of
    if "tokens" in policy.asks:
        raise StepError(f"problems seen_contexts: context {policy.name} counts tokens; use one that does not")
    made: list[Row] = []
    for row in generator():
        number = row["id"].rpartition(".")[2]
        messages = row["prompt"]
        first = len(messages) - 2 * int(number) if number.isdecimal() else 0
        if first < 1:
            raise StepError(f"problems seen_contexts: row {row['id']} is not one of `turns`; name these as `of`")
        texts = [str(message["content"]) for message in messages[first:]]
        past = [PastTurn(text, observation) for text, observation in zip(texts[::2], texts[1::2], strict=True)]
        if not past:
            made.append(row)
            continue
        then = policy.ask(0, {"prompt": messages[:first], "turns": past, "row": row})
        if then.asks == "memory" or then.ends or then.message is not None:
            raise StepError(
                f"problems seen_contexts: context {policy.name} writes memories or ends episodes; use another"
            )
        made.append(row | {"prompt": then.messages or messages})
    return made
