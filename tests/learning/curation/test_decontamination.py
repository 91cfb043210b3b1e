import re
import unicodedata
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learning.curation.decontamination import Evaluation, drop_contaminated, find_core
from learning.curation.duplicates import choose_bands, drop_exact_duplicates, drop_near_duplicates
from learning.curation.ledger import open_curation
from learning.data.rows import write_rows


def row(name, text, family="f"):
    prompt = [{"role": "user", "content": text}]
    return {"id": name, "prompt": prompt, "answer": "", "family": family, "metadata": "{}"}


@contextmanager
def opened(folder, texts):
    write_rows(folder, "prompts", [row(str(i), text) for i, text in enumerate(texts)])
    with open_curation(folder, spill=folder / "spill", num_threads=1, memory_limit="1GiB") as rows:
        yield rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


ALPHABET = st.sampled_from([*"ab12+-= ?\n", "é", "漢"])
TEXTS = st.lists(st.text(ALPHABET, max_size=12), min_size=1, max_size=12)


def words_of(text):
    """The plain words, written again in Python."""
    return re.findall(r"[^\W_漢]+|漢|[^\w\s]", unicodedata.normalize("NFC", text).lower())


def grams_of(words, n):
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(TEXTS, TEXTS)
def test_whole_problems_are_found_exactly_where_they_are_asked(folder, texts, problems):
    evaluation = Evaluation("e", [row(f"p{i}", text) for i, text in enumerate(problems)])
    with opened(folder, texts) as rows:
        drop_contaminated(rows, [evaluation], 100, 0.5)
        dropped = [int(i) for (i,) in rows.run("select row from dropped order by row")]
    asked = [words_of(problem) for problem in problems]
    assert dropped == [i for i, text in enumerate(texts) if words_of(text) and words_of(text) in asked]


WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(WORDS, min_size=1, max_size=8), st.lists(WORDS, min_size=1, max_size=2), st.sampled_from([0.0, 0.5, 1.0])
)
def test_overlap_equals_a_count_in_python(folder, texts, problems, max_overlap):
    n = 3  # with fewer than three problems nothing is a template
    evaluation = Evaluation("e", [row(f"p{i}", text) for i, text in enumerate(problems)])
    with opened(folder, texts) as rows:
        drop_contaminated(rows, [evaluation], n, max_overlap)
        dropped = {int(i) for (i,) in rows.run("select row from dropped")}
    expected = set()
    for i, text in enumerate(texts):
        for problem in problems:
            marks = grams_of(problem.split(), n)
            share = len(marks & grams_of(text.split(), n)) / len(marks) if marks else 0
            if text == problem or share > max_overlap:
                expected.add(i)
    assert dropped == expected


def test_a_template_is_what_a_tenth_of_the_family_shares_at_a_border():
    problems = [["add", x, "now", "please"] for x in "abcdefghijklmnopqrst"] + [["what", "is", "this", "now"]]
    assert find_core(problems) == [[x] for x in "abcdefghijklmnopqrst"] + [["what", "is", "this", "now"]]
    assert find_core([["a", "b"], ["a", "c"]]) == [["a", "b"], ["a", "c"]]
    assert find_core([["a", "b"]] * 3) == [[]] * 3
    assert find_core([]) == []


def test_families_have_their_own_templates(folder):
    left = "first of all the words of this family come to"
    right = "now the words of the other one come to {}"
    problems = [row(f"l{x}", f"{left} {x}", "left") for x in "abc"] + [
        row(f"r{x}", right.format(x), "right") for x in "abc"
    ]
    with opened(folder, [f"{left} d", f"{left} b", right.format("d"), right.format("c")]) as rows:
        drop_contaminated(rows, [Evaluation("e", problems)], 5, 0.3)
        assert rows.run("select row, detail from dropped order by row") == [
            (1, "e: problem lb, overlap 1.00"),
            (3, "e: problem rc, overlap 1.00"),
        ]


def test_scripts_without_spaces_are_compared_sign_by_sign(folder):
    problem = "这列火车早上九点从车站出发请问什么时候到达海边"
    with opened(folder, [f"请回答。{problem}?谢谢", "这列火车早上很好看", problem[:14]]) as rows:
        drop_contaminated(rows, [Evaluation("e", [row("p", problem)])], 8, 0.5)
        assert [r for (r,) in rows.run("select row from dropped")] == [0]


def test_no_evaluation_drops_nothing(folder):
    with opened(folder, ["a", "b"]) as rows:
        drop_contaminated(rows, [], 8, 0.5)
        assert rows.kept() == 2


def squeezed(text):
    blank = ("Zs", "Zl", "Zp")
    signs = [
        " " if c in "\t\n\f\r" or unicodedata.category(c) in blank else c for c in unicodedata.normalize("NFC", text)
    ]
    return re.sub(" +", " ", "".join(signs)).strip(" ")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.text(st.sampled_from("aé\u0301e \n\u00a0\u2028\u3000\x85A"), max_size=5), min_size=1, max_size=10))
def test_exact_duplicates_equal_a_set_in_python(folder, texts):
    with opened(folder, texts) as rows:
        drop_exact_duplicates(rows)
        kept = [r for (r,) in rows.run("select row from kept order by row")]
    keys = [squeezed(text) for text in texts]
    assert kept == [i for i, key in enumerate(keys) if key not in keys[:i]]


def test_bands_propose_nearly_all_pairs_at_the_threshold():
    for threshold in (0.3, 0.5, 0.8, 0.9, 1.0):
        for num_perm in (16, 64, 128):
            number, size = choose_bands(threshold, num_perm)
            assert number >= 2
            assert number * size <= num_perm
            assert size == 1 or 1 - (1 - threshold**size) ** number >= 0.99


def test_near_duplicates_agree_with_the_true_similarity(folder):
    import numpy as np

    random = np.random.default_rng(0)
    base = "".join(random.choice(list("abcdefgh "), 400))
    texts = [base]
    for edits in (1, 2, 4, 8, 40, 80):
        letters = list(base)
        for place in random.choice(400, edits, replace=False):
            letters[place] = "z"
        texts.append("".join(letters))

    def similarity(text):
        a, b = ({t[i : i + 5] for i in range(len(t) - 4)} for t in (" ".join(base.split()), " ".join(text.split())))
        return len(a & b) / len(a | b)

    with opened(folder, texts) as rows:
        drop_near_duplicates(rows, threshold=0.75, num_perm=256, ngram=5, seed=0)
        dropped = {r for (r,) in rows.run("select row from dropped")}
    assert {i for i, t in enumerate(texts[1:], 1) if similarity(t) > 0.85} <= dropped
    assert not {i for i, t in enumerate(texts[1:], 1) if similarity(t) < 0.6} & dropped
    assert similarity(texts[1]) > 0.95
    assert similarity(texts[-1]) < 0.4


def test_texts_shorter_than_a_shingle_are_equal_or_not(folder):
    with opened(folder, ["7", "8", " 7 ", ""]) as rows:
        drop_near_duplicates(rows, threshold=0.9, num_perm=16, ngram=5, seed=0)
        assert rows.run("select row, detail from dropped") == [(2, "of 0, similarity 1.00")]
