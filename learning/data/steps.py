"""Solutions in steps as token ids: a prompt, and steps that each end with a separator, where they are scored."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from learning.data.chat import encode_prompt, encode_text
from learning.data.rendering import Messages
from learning.data.rows import Row
from schemas.errors import StepError


@dataclass(frozen=True)
class EncodedSteps:
    """Ids of a prompt and of all steps; `ends` are the places of the last token of each step among those of steps."""

    prompt: list[int]
    completion: list[int]
    ends: list[int]


def encode_steps(
    tokenizer: PreTrainedTokenizerBase, prompt: Messages, steps: Sequence[str], separator: str, row: Row | None = None
) -> EncodedSteps:
    """Return steps as token ids; step and separator are encoded by themselves, as TRL's PRMTrainer does.

    In steps, text that looks like a special token stays text; the separator may be one. Raise StepError for a separator
    that the tokenizer has no token for.
    """
    between = tokenizer.encode(separator, add_special_tokens=False)
    if not between:
        raise StepError(f"step_separator: {separator!r} has no token in the model's tokenizer; choose another one")
    ids: list[int] = []
    ends: list[int] = []
    for step in steps:
        ids += encode_text(tokenizer, step) + between
        ends.append(len(ids) - 1)
    return EncodedSteps(encode_prompt(tokenizer, prompt, row), ids, ends)


def split_steps(text: str, separator: str) -> list[str]:
    """Return the steps of a completion: what lies between separators and is not blank, or else the text itself."""
    return [step for part in text.split(separator) if (step := part.strip())] or [text]
