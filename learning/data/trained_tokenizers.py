"""Slot tokenizer: tokenizers trained on the texts of a table of rows.

All but `words` work on bytes, so every text is encoded and decoded without loss, in any script.
"""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
from pydantic import Field
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from learning.data.rows import MESSAGES
from learning.data.shards import find_shards
from learning.data.tokenizers import CHAT_TEMPLATE, SPECIAL, UNKNOWN, wrap_tokenizer
from schemas.errors import StepError
from schemas.references import RowsRef

Size = Annotated[int, Field(ge=300, le=1_000_000)]
"""Entries of a vocabulary: 256 bytes, the special tokens, and what is learned."""
LONGEST_WORD = 1000
"""Bytes of a word up to which WordPiece splits it."""
BATCH = 1000
ROUNDS = 2
"""Rounds of expectation and maximisation after the trainer's own."""


def bpe(
    *,
    data: RowsRef,
    vocab_size: Size = 4096,
    min_frequency: Annotated[int, Field(ge=1)] = 2,
    chat_template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """Train byte-level byte-pair encoding (Sennrich et al. 2016) on the messages of `data`.

    Pairs that occur less than `min_frequency` times are not merged, so the vocabulary can be smaller than `vocab_size`.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _train(Tokenizer(models.BPE()), trainer, data, chat_template)


def unigram(*, data: RowsRef, vocab_size: Size = 4096, chat_template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Train a unigram language model over pieces of words (Kudo 2018), on bytes, on the messages of `data`."""
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        unk_token=UNKNOWN,
        show_progress=False,
    )
    trained = _train(Tokenizer(models.Unigram()), trainer, data, chat_template)
    backend: Any = trained.backend_tokenizer
    backend.model = _estimate_unigram(backend, Path(data))
    return trained


def wordpiece(*, data: RowsRef, vocab_size: Size = 4096, chat_template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Train WordPiece (Schuster & Nakajima 2012), on bytes and without continuation marks, on the messages of `data`.

    A word of more than 1000 bytes becomes <unk>.
    """
    model = models.WordPiece(unk_token=UNKNOWN, max_input_chars_per_word=LONGEST_WORD, continuing_subword_prefix="")  # pyright: ignore[reportCallIssue]  # missing from the stub
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        continuing_subword_prefix="",
        show_progress=False,
    )
    return _train(Tokenizer(model), trainer, data, chat_template)


def words(*, data: RowsRef, vocab_size: Size = 4096, chat_template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token for each of the most frequent words of the messages of `data`, between white space; others are <unk>.

    White space is not kept: texts are decoded with single blanks.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(_read_texts(Path(data)), trainer)
    return wrap_tokenizer(tokenizer, chat_template)


def _train(tokenizer: Any, trainer: Any, data: RowsRef, chat_template: str) -> PreTrainedTokenizerFast:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(_read_texts(Path(data)), trainer)
    return wrap_tokenizer(tokenizer, chat_template)


def _estimate_unigram(backend: Any, folder: Path) -> models.Unigram:
    """Return a unigram model of the trained pieces, with probabilities by hard EM on counts, which are integers.

    The trainer sums in an order that varies between runs: its probabilities, and with them the ids, differ by rounding.
    """
    pieces = sorted(backend.get_vocab().keys() - set(SPECIAL))
    known, longest = frozenset(pieces), max(map(len, pieces))
    words: Counter[str] = Counter()
    for text in _read_texts(folder):
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    counts: Counter[str] = Counter()
    for word, number in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + longest) + 1):
                if (part := word[start:end]) in known:
                    counts[part] += number
    model = _make_unigram(pieces, counts)
    for _ in range(ROUNDS):
        counts = Counter()
        for word, number in words.items():
            for token in model.tokenize(word):
                counts[token.value] += number
        model = _make_unigram(pieces, counts)
    return model


def _make_unigram(pieces: list[str], counts: Counter[str]) -> models.Unigram:
    total = sum(counts[piece] + 1 for piece in pieces)
    scores = {piece: math.log((counts[piece] + 1) / total) for piece in pieces}
    ordered = sorted(pieces, key=lambda piece: (-scores[piece], piece))
    vocabulary = [(token, 0.0) for token in SPECIAL] + [(piece, scores[piece]) for piece in ordered]
    return models.Unigram(vocabulary, SPECIAL.index(UNKNOWN), False)


def _read_texts(folder: Path) -> Iterator[str]:
    """Yield the text of every message of every row; raise StepError if there is none."""
    has_text = False
    for path in find_shards(folder):
        file = pq.ParquetFile(path)
        columns = [field.name for field in file.schema_arrow if field.type == MESSAGES]
        for batch in file.iter_batches(BATCH, columns=columns):
            for column in batch.columns:
                for messages in column.to_pylist():
                    for message in messages or ():
                        if message["content"]:
                            has_text = True
                            yield message["content"]
    if not has_text:
        raise StepError(f"tokenizer: no message with text in {folder.name}; name a stage that makes rows")
