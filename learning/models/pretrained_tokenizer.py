"""Slot tokenizer: the tokenizer of a published model."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from learning.models.policy import UNREADABLE, load_tokenizer
from schemas.adapter_base import find_tokenizer_folder
from schemas.errors import StepError
from schemas.references import AnyRef


def pretrained(*, source: AnyRef, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder, a GGUF file or a model, with its own chat template unless one is given.

    `tokenizer: path:./folder` is the same as `{use: pretrained, source: path:./folder}`. Raise StepError if there is no
    tokenizer, or if it has no end-of-sequence token; the padding token is then that one, unless there is another.
    """
    folder = Path(source)
    try:
        tokenizer = load_tokenizer(find_tokenizer_folder(folder))
    except UNREADABLE as error:
        raise StepError(f"tokenizer: {folder.name} has no tokenizer that can be loaded: {error}") from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if tokenizer.eos_token is None:
        raise StepError(f"tokenizer: that of {folder.name} names no end-of-sequence token; set eos_token in its files")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
