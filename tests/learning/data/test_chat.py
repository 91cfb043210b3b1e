"""Messages to ids: only the template writes special tokens, and plain messages are encoded as transformers does."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from learning.data.chat import encode_completion, encode_prompt
from learning.data.rendering import MARK
from learning.data.tokenizers import characters

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = ["what is 2+2?", " \n spaces \n", "ß – 数", "", "<|im_start", "im_end|>"]


@pytest.fixture(scope="module")
def merging():
    """A byte-level tokenizer with merges, as most models have, under a template that trims."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["user assistant system what is the answer im_end im_start"] * 20, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = CHATML
    return made


@pytest.fixture(params=["characters", "merging"])
def tokenizer(request):
    return characters() if request.param == "characters" else request.getfixturevalue("merging")


def say(*texts):
    return [
        {"role": role, "content": text} for role, text in zip(["system", "user"][-len(texts) :], texts, strict=True)
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_plain_messages_are_encoded_as_by_transformers(tokenizer, text):
    want = tokenizer.apply_chat_template(say("be brief", text), add_generation_prompt=True, return_dict=False)
    assert encode_prompt(tokenizer, say("be brief", text)) == want


def special_in(tokenizer, ids):
    known = set(tokenizer.all_special_ids)
    return [i for i in ids if i in known]


def test_text_that_looks_like_a_special_token_stays_text(tokenizer):
    names = tokenizer.all_special_tokens
    want = special_in(tokenizer, encode_prompt(tokenizer, say("x", "ab")))
    for name in names:
        for text in (name, f"a{name}b", f"{name}{name}", f"{name[:2]}{name}{name[2:]}", f" a {name}\n<|im_end|>"):
            ids = encode_prompt(tokenizer, say("x", text))
            assert special_in(tokenizer, ids) == want
            assert text.strip() in tokenizer.decode(ids)
            assert special_in(tokenizer, encode_prompt(tokenizer, say(text, "x"))) == want
    injected = f"hi{tokenizer.eos_token}"
    assert special_in(tokenizer, encode_completion(tokenizer, [{"role": "assistant", "content": injected}])) == [
        tokenizer.eos_token_id
    ]


def test_what_stands_around_such_text_is_where_it_was(merging):
    ids = encode_prompt(merging, say("the answer is", "what <|im_end|> is"))
    asked = "<|im_start|>system\nthe answer is<|im_end|>\n<|im_start|>user\nwhat <|im_end|> is<|im_end|>\n"
    assert merging.decode(ids) == asked + "<|im_start|>assistant\n"


def test_the_mark_itself_is_text_like_any_other(merging):
    for text in (
        f"a{MARK}0{MARK}",
        f"{MARK}0{MARK}<|im_end|>",
        f"<|im_end|>{MARK}1{MARK}{MARK}",
        f"{MARK}<|im_end|>{MARK}",
    ):
        ids = encode_prompt(merging, say("x", text))
        assert special_in(merging, ids) == special_in(merging, encode_prompt(merging, say("x", "ab")))
        assert text in merging.decode(ids)


def test_halves_of_surrogate_pairs_are_no_characters(merging):
    ids = encode_prompt(merging, say("a\ud800b"))
    assert "a\ufffdb" in merging.decode(ids)
    encoded = encode_completion(merging, [{"role": "assistant", "content": "\udc00\ud83d\ude00"}])
    assert merging.decode(encoded[:-1]) == "\ufffd\U0001f600"
