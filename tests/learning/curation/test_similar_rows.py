import numpy as np
import pytest

from learning.curation.diversity import choose_by_topics, choose_facilities, choose_farthest
from learning.curation.embeddings import hashed_ngrams
from learning.curation.similar_rows import find_similar
from learning.curation.topics import divide_evenly, find_topics


def unit_vectors(count, width, seed=0, centres=0):
    random = np.random.default_rng(seed)
    made = random.normal(size=(count, width))
    if centres:
        made = random.normal(size=(centres, width))[np.arange(count) % centres] + 0.25 * made
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def test_similar_rows_are_those_of_a_loop_over_all_pairs(monkeypatch):
    monkeypatch.setattr("learning.curation.similar_rows.BLOCK", 16)
    monkeypatch.setattr("learning.curation.similar_rows.CHUNK", 24)
    vectors = unit_vectors(200, 6, centres=60)
    group = np.flatnonzero(np.arange(200) % 7)
    stays, expected = [], []
    for place, row in enumerate(group):
        cosines = [(float(vectors[row].astype(float) @ vectors[group[p]].astype(float)), -p) for p in stays]
        best = max(cosines, default=(-1, 0))
        if best[0] >= 0.9:
            expected.append((place, -best[1], best[0]))
        else:
            stays.append(place)
    pairs = list(find_similar(vectors, group, 0.9))
    assert [pair[:2] for pair in pairs] == [pair[:2] for pair in expected]
    assert 20 < len(pairs) < len(group) - 20
    np.testing.assert_allclose([pair[2] for pair in pairs], [pair[2] for pair in expected])


def test_farthest_points_are_those_of_the_definition():
    vectors = unit_vectors(60, 5)
    chosen = [0]
    while len(chosen) < 12:
        nearest = (vectors.astype(float) @ vectors[chosen].astype(float).T).max(1)
        nearest[chosen] = 9
        chosen.append(int(nearest.argmin()))
    assert choose_farthest(vectors, 12) == chosen


def test_facilities_are_those_of_greedy_maximisation():
    vectors = unit_vectors(50, 5, seed=1)
    similar = (1 + vectors.astype(float) @ vectors.astype(float).T) / 2
    chosen = []
    while len(chosen) < 10:
        before = similar[:, chosen].max(1) if chosen else np.zeros(50)
        gains = np.maximum(similar, before[:, None]).sum(0)
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
    assert choose_facilities(vectors, 10) == chosen


def test_rows_that_are_all_equal_can_be_chosen_from():
    vectors = np.ones((5, 2), np.float32) / np.float32(2**0.5)
    assert choose_farthest(vectors, 3) == [0, 1, 2]
    assert sorted(choose_facilities(vectors, 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("sizes", "total", "chosen"),
    [([5, 5, 5], 6, [2, 2, 2]), ([1, 9, 9], 11, [1, 5, 5]), ([0, 3, 2], 5, [0, 3, 2]), ([4, 4, 4], 7, [3, 2, 2])],
)
def test_topics_share_the_rows_evenly(sizes, total, chosen):
    assert divide_evenly(np.array(sizes), total).tolist() == chosen


def test_topics_are_the_clusters_and_the_draw_depends_on_the_seed(monkeypatch):
    monkeypatch.setattr("learning.curation.topics.BLOCK", 32)
    vectors = unit_vectors(90, 8, seed=4, centres=3)
    topics = find_topics(vectors, 3, seed=0)
    assert all(len(set(topics[i::3].tolist())) == 1 for i in range(3))
    chosen = choose_by_topics(topics, 12, seed=0)
    assert np.bincount(topics[chosen]).tolist() == [4, 4, 4]
    assert sorted(chosen) != sorted(choose_by_topics(topics, 12, seed=1))


def test_hashed_ngrams_count_words_and_pairs_of_them():
    rows = [{"prompt": [{"content": text}]} for text in ("a b a", "A b", "z", "")]
    made = hashed_ngrams(rows, dim=4096)
    assert np.abs(made).sum(1).tolist() == [5, 3, 1, 0]  # a, b, a, "a b", "b a"
    assert sorted(np.abs(made[0])[made[0] != 0].tolist()) == [1, 1, 1, 2]
    assert made[0] @ made[1] == 2 + 1 + 1
    assert made[0] @ made[2] == 0
