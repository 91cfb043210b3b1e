"""Rows of conversations as token ids, with the border between what is given and what is learned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from learning.chat import encode_completion, encode_prompt
from schemas.errors import StepError


@dataclass(frozen=True)
class Example:
    """Ids of a prompt followed by those of its completion; the completion, with its end token, is what is learned."""

    ids: list[int]
    num_given: int

    @property
    def num_learned(self) -> int:
        """Tokens with a loss; the first token of a sequence has none, nothing predicts it."""
        return len(self.ids) - max(self.num_given, 1)


@dataclass(frozen=True)
class Examples:
    """What is trained on, and what was seen on the way: rows too long, and tokens that the tokenizer does not know."""

    kept: Sequence[Example]
    dropped: int
    unknown: int


def encode_rows(tokenizer: PreTrainedTokenizerBase, rows: Sequence[dict[str, Any]], max_length: int) -> Examples:
    """Encode chat rows; rows of more than `max_length` tokens are dropped. Raises StepError when none is left."""
    found: list[Example] = []
    for row in rows:
        given = encode_prompt(tokenizer, row["prompt"])
        found.append(Example(given + encode_completion(tokenizer, row["completion"]), len(given)))
    kept = [example for example in found if len(example.ids) <= max_length]
    if not kept:
        shortest = min((len(example.ids) for example in found), default=0)
        raise StepError(
            f"data: all {len(found)} rows are longer than {max_length} tokens (the shortest has {shortest}); "
            "raise max_length here and in the model's init stage"
            if found
            else "data: no rows to train on; look at what the stage before dropped"
        )
    unknown = tokenizer.unk_token_id
    count = sum(example.ids.count(unknown) for example in kept) if unknown is not None else 0
    return Examples(kept, len(found) - len(kept), count)
