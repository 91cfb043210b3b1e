"""Tokens and the tags that they are in."""

import pytest

from learning.algorithm.token_masks.masks import outside_tags
from learning.batch.batch_layout import forest
from learning.data.chat import encode_text
from learning.rl.tag_spans import add_tags, find_spans, name_tokens
from learning.samples.engine_protocol import Turn, hash_name
from learning.samples.sample import Sample


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("a<b>c</b>d", [(1, 9, "b")]),
        ("<b>c</b><c>d</c>", [(0, 8, "b"), (8, 16, "c")]),
        ("<b><c>d</c></b>", [(0, 15, "b")]),  # the outer one
        ("<b>c<b>d</b>", [(0, 12, "b")]),
        ("<b>c", []),
        ("<b><c>d</c>", [(3, 11, "c")]),  # what is not closed is no tag
        ("</b><b>", []),
        ("1 < 2 <b> </b>", [(6, 14, "b")]),
    ],
)
def test_pairs_of_tags_are_spans(text, spans):
    assert find_spans(text) == spans


def test_a_token_that_reaches_into_a_span_belongs_to_it():
    assert name_tokens(["x", "a<", "b>c</b", ">d", "", "e"]) == ["", "b", "b", "b", "", ""]
    assert name_tokens(["<b>", "</b>", "<c>", "</c>"]) == ["b", "b", "c", "c"]
    assert name_tokens([]) == []


def test_many_tags_without_an_end_take_no_time():
    text = "<a>" * 20_000 + "".join(f"<b{n}>" for n in range(2_000))
    assert find_spans(text) == []


def sample(tokenizer, parts, given=""):
    """An episode of turns: texts of the model alternate with texts of the environment."""
    ids, turns = [encode_text(tokenizer, part) for part in parts], []
    for said, seen in zip(ids[::2], ids[1::2], strict=False):
        turns.append(Turn(len(said), len(seen)))
    before = encode_text(tokenizer, given) if given else []
    every = [*before, *(token for part in ids for token in part)]
    made = Sample({"id": "a"}, 0, "policy", [8], every, [-1.0] * len(every), "stop", "", given=len(before))
    made.turns, made.versions = turns, [0] * len(every)
    return made


def test_the_column_has_sampled_tokens_alone_and_turns_are_read_by_themselves(tiny_policy):
    tokenizer = tiny_policy.tokenizer
    samples = [
        sample(tokenizer, ["x<b>c</b>y"]),
        sample(tokenizer, ["<b>c", "</b>", "d</b><c>e</c>"]),  # the environment closes nothing
        sample(tokenizer, ["c</b>d"], given="<b>"),
    ]
    batch = add_tags(forest(samples), samples, None, None, tokenizer)
    b, c = hash_name("b"), hash_name("c")
    expected = [0, *[b] * 8, 0, *[0] * 4, *[0] * 5, *[c] * 8, *[0] * 6]
    tag_T = batch.sampled("tag")
    assert tag_T.tolist() == expected
    assert outside_tags(tag_T, tags=["b"]).tolist() == [value != b for value in expected]
    assert outside_tags(tag_T, tags=["b", "c"]).tolist() == [value == 0 for value in expected]
