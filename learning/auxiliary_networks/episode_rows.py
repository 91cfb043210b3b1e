"""Episodes of a file as samples: a row of chat is one episode, of which every turn of the assistant is trained on.

`metadata` say what the turns earned: `{"rewards": [0, 0, 1]}`, one number per turn of the assistant, or
`{"rewards": 1}` for the last one. A turn's reward arrives at its last token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from learning.data.rows import Row, read_metadata
from learning.data.turns import encode_conversation
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.errors import StepError

ADVICE = 'give one number per turn of the assistant, {"rewards": [0, 1]}, or one for the last turn, {"rewards": 1}'


@dataclass(frozen=True)
class EncodedEpisodes:
    """Episodes as samples, and how many had more tokens than the limit."""

    samples: Sequence[Sample]
    too_long: int


def list_rewards(row: Row) -> list[float]:
    """Return what each turn of the assistant earned, by the row's metadata. Raise StepError where they do not say."""
    turns = sum(message["role"] == "assistant" for message in [*row["prompt"], *row["completion"]])
    given = read_metadata(row).get("rewards")
    rewards = given if isinstance(given, list) else [*[0.0] * (turns - 1), given]
    numbers = [
        one for one in rewards if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
    ]
    if len(numbers) < len(rewards):
        raise StepError(f"row {row['id']}: its metadata have no `rewards` that are numbers; {ADVICE}")
    if len(numbers) != turns:
        raise StepError(f"row {row['id']}: {len(numbers)} rewards for {turns} turns of the assistant; {ADVICE}")
    return [float(one) for one in numbers]


def encode_episodes(
    tokenizer: Any, rows: Sequence[Row], rewards: Sequence[Sequence[float]], max_length: int
) -> EncodedEpisodes:
    """Return rows with the rewards of their turns as samples, without those of more than `max_length` tokens.

    Raise StepError if a turn of a row has no token of its own.
    """
    samples = [_encode(tokenizer, row, given, i) for i, (row, given) in enumerate(zip(rows, rewards, strict=True))]
    kept = [one for one in samples if len(one.prompt_ids) + len(one.completion_ids) <= max_length]
    return EncodedEpisodes(kept, len(samples) - len(kept))


def _encode(tokenizer: Any, row: Row, rewards: Sequence[float], number: int) -> Sample:
    made = encode_conversation(tokenizer, row["prompt"], row["completion"], train_on="all", row=row)
    first = made.learned.index(True)
    spans = [(own, len(list(group))) for own, group in groupby(made.learned[first:])]
    sampled, observed = [n for own, n in spans if own], [n for own, n in spans if not own]
    if len(sampled) != len(rewards):
        raise StepError(
            f"row {row['id']}: the chat template shows {len(sampled)} of {len(rewards)} turns of the assistant apart "
            "from others; leave out turns that are empty or follow each other"
        )
    after = [*observed, *[0] * (len(sampled) - len(observed))]
    turns = [Turn(n, seen, reward) for n, seen, reward in zip(sampled, after, rewards, strict=True)]
    completion = made.ids[first:]
    text = row["completion"][-1]["content"]
    return Sample(row, number, "policy", made.ids[:first], completion, None, "stop", text, turns=turns)
