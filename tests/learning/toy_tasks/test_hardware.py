import numpy as np
import pytest

from learning.toy_tasks.hardware import compute_outputs, describe_code, is_equivalent, modules, regenerated
from learning.toy_tasks.hidden_operations import operations
from learning.toy_tasks.rewards import hardware as rewards
from schemas.errors import StepError


def row(code, kind="out"):
    text = describe_code(code, kind)
    messages = [{"role": "user", "content": text}]
    return {"id": "m", "prompt": messages, "answer": code, "family": "modules", "metadata": f'{{"kind": "{kind}"}}'}


def test_golden_code_passes_its_testbench_and_comes_back_from_its_description():
    rows = modules(size=120, seed=1, split="train", operators=3)
    rng = np.random.default_rng(0)
    texts = [regenerated(one, rng, error_rate=0.0) for one in rows]
    assert texts == [one["answer"] for one in rows]
    assert rewards.equivalent(rows, texts) == [1.0] * 120
    assert 0.1 < np.mean(['"next"' in one["metadata"] for one in rows]) < 0.4
    assert rows == modules(size=120, seed=1, split="train", operators=3)
    assert not {one["id"] for one in rows} & {one["id"] for one in modules(size=30, split="test", operators=3)}


def test_forgotten_parentheses_are_found_out_unless_they_do_not_matter():
    rng = np.random.default_rng(0)
    for code, kept in (("a&(b|c)", False), ("(a&b)|c", True), ("(a^b)^c", True), ("~(a|b)", False)):
        text = regenerated(row(code), rng, error_rate=1.0)
        assert "(" not in text
        assert is_equivalent(row(code), text) is kept


def test_a_register_is_judged_by_what_it_does_after_a_reset():
    toggle = row("(a^b)&~c", "next")
    assert is_equivalent(toggle, "~c&(a&~b|~a&b)")
    assert not is_equivalent(toggle, "a&~c")
    assert not is_equivalent(toggle, "a^b")
    # Without a reset that works the first state shows; with one it does not.
    seen = compute_outputs("(a^b)&~c", "next")
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    held = compute_outputs("a|b", "next")
    assert held[: len(held) // 2] != held[len(held) // 2 :]


def test_invalid_code_fails_and_a_missing_module_is_reported():
    assert rewards.equivalent([row("a&b")] * 3, ["", "a and b", "a&d"]) == [0.0] * 3
    with pytest.raises(StepError, match="use problems of `modules`"):
        is_equivalent(row("a&b") | {"metadata": "{}"}, "a&b")
    with pytest.raises(StepError, match="lower `size`"):
        modules(size=150, split="train", operators=1, registers=0.0)


def test_examples_disclose_what_a_sign_means():
    how = {"larger": max, "smaller": min, "first": lambda a, b: a, "second": lambda a, b: b}
    rows = operations(size=200, seed=1, split="train", shown=2)
    for one in rows:
        meaning = how[one["metadata"].split('"')[3]]
        texts = [turn["content"] for turn in one["prompt"]] + [one["answer"]]
        assert all(meaning(*map(int, q.split("?"))) == int(a) for q, a in zip(texts[::2], texts[1::2], strict=True))
    assert len({one["metadata"] for one in rows}) == 4
    fixed = operations(size=60, seed=3, split="train", meaning="smaller")
    assert {one["metadata"] for one in fixed} == {'{"meaning": "smaller"}'}
    asked = {one["prompt"][-1]["content"] for one in fixed}
    assert not asked & {one["prompt"][-1]["content"] for one in operations(size=10, split="test", meaning="smaller")}
