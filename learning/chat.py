"""Messages to token ids and back. Ids of a prompt and of a completion are made once and only ever concatenated."""

from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from schemas.errors import StepError

Messages = list[dict[str, Any]]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """Ids of the conversation so far, up to where the assistant begins.

    Raises StepError without a chat template, or when the template refuses the messages.
    """
    if not tokenizer.chat_template:
        raise StepError("the model's tokenizer has no chat template; add chat_template.jinja to the model's folder")
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise StepError(f"the chat template refuses a prompt: {error}; its messages are {messages!r}") from error
    return tokenizer.encode(text, add_special_tokens=False)


def encode_completion(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """Ids of the assistant's turn, closed by one end-of-sequence token; raises StepError for other shapes.

    Text that looks like a special token stays text, so that the end of the turn is its only end-of-sequence token.
    """
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise StepError("a completion must be one assistant message; split longer conversations into rows")
    if tokenizer.eos_token_id is None:
        raise StepError("the model's tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
    text = messages[0]["content"]
    return [*tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True), tokenizer.eos_token_id]


def decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """Text of ids, without special tokens."""
    return tokenizer.decode(ids, skip_special_tokens=True)
