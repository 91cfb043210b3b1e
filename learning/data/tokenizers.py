"""Slot tokenizer: functions that build a tokenizer from nothing."""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from schemas.errors import StepError

PAD, EOS, USER, ASSISTANT, SYSTEM, UNKNOWN = "<pad>", "<eos>", "<user>", "<assistant>", "<system>", "<unk>"
SPECIAL = (PAD, EOS, USER, ASSISTANT, SYSTEM, UNKNOWN)
# Every turn opens with its role and closes with <eos>; a generation prompt is the opening alone, so that the ids of a
# prompt followed by those of a completion are the ids of the whole conversation.
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, user and assistant, not ' + m['role']) }}{% endif %}"
    "{{ '<' + m['role'] + '>' + m['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " \n"


def characters(*, alphabet: str = PRINTABLE, chat_template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per character of the alphabet; what is not in it becomes <unk>."""
    if not alphabet:
        raise StepError("tokenizer.alphabet: empty; give the characters that texts are made of")
    if len(set(alphabet)) != len(alphabet):
        twice = sorted({c for c in alphabet if alphabet.count(c) > 1})
        raise StepError(f"tokenizer.alphabet: repeated character(s) {twice!r}; give each one once")
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return wrap_tokenizer(tokenizer, chat_template)


def wrap_tokenizer(tokenizer: Tokenizer, chat_template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers with the special tokens of `SPECIAL` and a chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )
