"""Near-duplicates: the signatures of datasketch bit by bit, and the rows that its index would drop one by one."""

import random
import zlib

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH

from learning.curation.duplicates import choose_bands
from learning.curation.minhash import Hasher, normalise_text
from learning.curation.near_duplicates import Signatures, find_near_duplicates

ALPHABETS = ("abc d", "abé漢🙂 \u0000", "ab")


def texts(source, count):
    result = []
    for _ in range(count):
        alphabet = source.choice(ALPHABETS)
        result.append(normalise_text("".join(source.choices(alphabet, k=source.choice([0, 1, 4, 5, 6, 40, 200])))))
    return result


def sketch(text, num_perm, ngram, seed):
    made = MinHash(num_perm=num_perm, seed=seed, hashfunc=zlib.crc32)
    made.update_batch(sorted({text[i : i + ngram].encode() for i in range(max(1, len(text) - ngram + 1))}))
    return made


@pytest.mark.parametrize(("num_perm", "ngram"), [(128, 5), (16, 1), (64, 9)])
def test_signatures_are_those_of_datasketch(num_perm, ngram):
    given = texts(random.Random(0), 120)
    signatures = Hasher(num_perm, ngram, 7).signatures(given)
    for text, signature in zip(given, signatures, strict=True):
        assert np.array_equal(sketch(text, num_perm, ngram, 7).hashvalues, signature)


def test_plain_text_takes_another_way_to_the_same_hashes():
    source = random.Random(1)
    plain = ["".join(source.choices("abc d", k=source.randint(5, 90))) for _ in range(200)]
    hasher = Hasher(32, 5, 1)
    assert np.array_equal(hasher.signatures([*plain, "é"])[:-1], hasher.signatures(plain))


def test_signatures_do_not_depend_on_what_is_hashed_together(monkeypatch):
    given = texts(random.Random(2), 200)
    hasher = Hasher(32, 5, 1)
    whole = hasher.signatures(given)
    monkeypatch.setattr("learning.curation.minhash.WIDTH", 97)
    assert np.array_equal(hasher.signatures(given), whole)
    assert np.array_equal(np.concatenate([hasher.signatures([text]) for text in given]), whole)


def dropped_one_by_one(given, threshold, num_perm):
    """What the index of datasketch drops, with the row that each is most like."""
    index, stayed, duplicates = MinHashLSH(num_perm=num_perm, params=choose_bands(threshold, num_perm)), {}, []
    for row, text in enumerate(given):
        made = sketch(text, num_perm, 3, 1)
        near = [(made.jaccard(stayed[other]), -other) for other in index.query(made)]
        similarity, other = max(near, default=(0.0, 0))
        if similarity >= threshold:
            duplicates.append((row, -other, similarity))
        else:
            index.insert(row, made)
            stayed[row] = made
    return duplicates


@pytest.mark.parametrize(("threshold", "num_perm"), [(0.3, 64), (0.6, 128), (0.9, 128), (1.0, 16)])
def test_the_same_rows_go_as_with_an_index_in_memory(tmp_path, threshold, num_perm):
    source, given = random.Random(num_perm), []
    for _ in range(400):
        if given and source.random() < 0.6:
            letters = list(source.choice(given))
            for _ in range(source.randint(0, 5)):
                letters[source.randrange(len(letters))] = source.choice("abcdefgh")
            given.append("".join(letters))
        else:
            given.append("".join(source.choices("abcdefgh", k=source.randint(10, 60))))
    hasher = Hasher(num_perm, 3, 1)
    with Signatures(tmp_path, num_perm, *choose_bands(threshold, num_perm)) as signatures:
        for start in range(0, 400, 77):
            signatures.add(hasher.signatures(given[start : start + 77]))
        duplicates = list(find_near_duplicates(signatures, threshold))
    assert duplicates == dropped_one_by_one(given, threshold, num_perm)
    assert len(duplicates) > 40


def test_a_collision_of_band_hashes_proposes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("learning.curation.near_duplicates.MULTIPLIER", np.uint64(0))  # all rows are one group
    source = random.Random(3)
    given = ["".join(source.choices("abcdefgh", k=40)) for _ in range(60)] + ["x" * 40, "x" * 40]
    with Signatures(tmp_path, 32, 2, 16) as signatures:
        signatures.add(Hasher(32, 3, 1).signatures(given))
        assert list(find_near_duplicates(signatures, 0.05)) == [(61, 60, 1.0)]
