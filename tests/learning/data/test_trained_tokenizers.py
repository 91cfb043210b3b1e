import pytest

from learning.data.rows import write_rows
from learning.data.trained_tokenizers import bpe, unigram, wordpiece
from schemas.errors import StepError

TEXTS = [
    "The cat sat on the mat.",
    "Cats and mats: 12, 123 and 1234!",
    "sät, şat, 猫が座った",
    "  two  spaces\n\nnew\tlines",
]
STRANGE = ["", " ", "\u0000\u0001", "never seen: ζωή 🐈‍⬛", "a" * 900, "<eos> in text", "\r\n \u2028"]


@pytest.fixture
def data(tmp_path):
    rows = [
        {
            "id": str(i),
            "prompt": [{"role": "user", "content": text}],
            "answer": None,
            "family": "x",
            "metadata": None,
            "completion": [{"role": "assistant", "content": text[::-1]}],
        }
        for i, text in enumerate(TEXTS * 8)
    ]
    write_rows(tmp_path, "chat", rows)
    return tmp_path


@pytest.mark.parametrize("train", [bpe, unigram, wordpiece])
def test_every_text_comes_back(train, data):
    tokenizer = train(data=data, vocab_size=400)
    for text in [*TEXTS, *STRANGE]:
        ids = tokenizer.encode(text, split_special_tokens=True)
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text
    assert len(tokenizer) <= 400
    assert len(tokenizer.encode("The cat sat on the mat.")) < 18  # of 23 bytes


@pytest.mark.parametrize("train", [bpe, unigram, wordpiece])
def test_equal_rows_give_equal_tokenizers(train, data):
    first, second = (train(data=data, vocab_size=350).backend_tokenizer.to_str() for _ in range(2))
    assert first == second


def test_special_tokens_and_template_are_those_of_characters(data):
    tokenizer = bpe(data=data, vocab_size=300)
    messages = [{"role": "user", "content": "cat"}, {"role": "assistant", "content": "mat"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<user>cat<eos><assistant>mat<eos>"
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token) == ("<pad>", "<eos>", "<unk>")


def test_no_text_is_an_error(tmp_path):
    write_rows(tmp_path, "prompts", [])
    with pytest.raises(StepError, match="no message with text"):
        bpe(data=tmp_path)
