import json
import time

import numpy as np
import pytest

from learning.lookup import bind
from learning.toy_tasks.coding import list_functions, program_states, straight_programs
from learning.toy_tasks.execution import LARGEST, LONGEST_LIST, ProgramError, evaluate, execute
from learning.toy_tasks.rewards import execution
from learning.toy_tasks.rewards.execution import passed, states
from schemas.errors import StepError
from schemas.use import ResampleUse


@pytest.mark.parametrize(
    "text",
    [
        "sorted(x)[::-1]",
        "[v*2 for v in x if v>0]",
        "x[1:]+x[:2]",
        "max(x)-min(x)*3//2%5",
        "sum(x) if len(x)>3 else -1",
        "[abs(v) for v in list(reversed(x))]",
        "[v for v in [w+1 for w in x] if v!=3]",
        "x*2",
        "x[-1]==x[0]",
        "[1,2]+[]",
        "[len(x), x[0]]",
    ],
)
def test_expressions_mean_what_python_means(text):
    for x in ([3, -1, 2, 0, 7], [5, 5]):
        given = {"x": list(x)}
        want = eval(text.replace("reversed", "list_reversed"), {"x": x, "list_reversed": lambda v: v[::-1]})
        assert evaluate(text, given) == want
        assert given == {"x": x}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "y",
        "x +",
        "import os",
        "__import__('os')",
        "x.sort()",
        "(lambda: 1)()",
        "open('f')",
        "'a'*9",
        "1.5",
        "2**99",
        "[0]*101",
        f"{LARGEST}+1",
        "[[b for b in x] for c in x][0][9]",
        "x[10]",
        "1//0",
        "f'{x}'",
        "sorted(x, key=abs)",
        "[1 for a in x for b in x]",
        "(" * 300,
        "[x for x in x",
        "max()",
        "x[0]=1",
        "exec('1')",
        "1" * 500,
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(ProgramError):
        evaluate(text, {"x": [1, 2]} if text != "x" else {})
    with pytest.raises(ProgramError):
        execute(f"y={text}", {"x": [1, 2]} if text != "x" else {})


def test_time_and_size_are_bounded():
    many = list(range(LONGEST_LIST))
    with pytest.raises(ProgramError, match="too long"):
        evaluate("[[[1 for a in x] for b in x] for c in x]", {"x": many})
    with pytest.raises(ProgramError, match="too large"):
        evaluate("x+[1]", {"x": many})


def test_variables_hold_what_they_were_last_given():
    assert execute("x=2; y=x*3; x=y-1", {}) == {"x": 5, "y": 6}
    assert execute("x=a\ny=[x for x in [1,2]]\nz=x", {"a": 7}) == {"x": 7, "y": [1, 2], "z": 7}
    for text in ("1", "x=1; y", "x,y=1,2", "x=y=1;z", "for i in [1]: x=i", "x+=1"):
        with pytest.raises(ProgramError):
            execute(text, {"x": 0})


@pytest.mark.parametrize(
    ("family", "options"),
    [(list_functions, {"level": level}) for level in (1, 2, 3)] + [(straight_programs, {"lines": n}) for n in (2, 3)],
)
def test_golden_answers_pass_and_the_sides_of_the_split_are_apart(family, options):
    size = 6 if options == {"level": 1} else 30
    train = family(size=size, seed=1, split="train", **options)
    assert train == family(size=size, seed=1, split="train", **options)
    assert passed(train, [row["answer"] for row in train]) == [1.0] * size
    test = family(size=max(1, size // 8), seed=1, split="test", **options)
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    with pytest.raises(StepError, match="lower `size`"):
        family(size=100, split="train", **dict.fromkeys(options, 1))


def test_tests_are_passed_wholly_or_in_part():
    (row,) = straight_programs(size=1, seed=3, split="train", lines=2)
    assert passed([row] * 3, [row["answer"], "x=0;y=1", "oh no"]) == [1.0, 0.0, 0.0]
    names = "x = abs(a) * 2"
    doubled = row | {"metadata": '{"tests": [[{"a": 1}, 2], [{"a": -1}, -2]], "result": "x"}'}
    assert passed([doubled], [names], partial=True) == [0.5]
    assert passed([doubled], [names]) == [0.0]
    assert passed([row | {"metadata": "{}"}], ["x=1"]) == [None]
    assert passed([doubled], ["y=1"], partial=True) == [0.0]


def test_the_first_failure_is_the_last_that_runs_unless_a_share_is_asked_for(monkeypatch):
    ran = []
    monkeypatch.setattr(execution, "evaluate", lambda text, inputs: ran.append(inputs["a"]) or 0)
    row = {"metadata": json.dumps({"tests": [[{"a": 1}, 0], [{"a": 2}, 9], [{"a": 3}, 0]], "result": None})}
    assert passed([row], ["a"]) == [0.0]
    assert ran == [1, 2]
    assert passed([row], ["a"], partial=True) == [2 / 3]
    assert ran == [1, 2, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("x=5,y=6", 1.0),
        (" y=6, x=5 ", 1.0),
        ("x=5,y=7", 0.5),
        ("x=5", 0.5),
        ("x=5,y=6,z=1", 0.0),
        ("", 0.0),
        ("5", 0.0),
    ],
)
def test_states_are_right_wholly_or_in_part(text, share):
    row = {"id": "s", "metadata": '{"states": {"x": 5, "y": 6}}'}
    assert states([row], [text], partial=True) == [share]
    assert states([row], [text]) == [float(share == 1)]
    assert states([row | {"metadata": "{}"}], [text]) == [None]


def test_states_of_programs_are_their_answers():
    rows = program_states(size=30, seed=1, split="train")
    assert states(rows, [row["answer"] for row in rows]) == [1.0] * 30
    assert {tuple(sorted(part[0] for part in row["answer"].split(","))) for row in rows} == {("x", "y")}


def test_follow_ups_name_trace_tasks():
    bound = bind(ResampleUse(use="trace_tasks"), "resample.0")
    samples, requests = bound.function([], 0, np.random.default_rng(0))
    assert (samples, requests) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        *("[" * k + "0" + "]*99" * k + "==" + "[" * k + "0" + "]*99" * k for k in range(2, 30, 3)),
        "[[0]*40]*40",
        "[sorted([y,y])==sorted([y,y]) for y in [[[0]*90]*9]*90]",
        "[x==x for a in x]==[[x]*9]*99",
        "[" * 90 + "]" * 90,
        "-" * 390 + "1",
        "max(" * 90 + "x" + ")" * 90,
        "1" * 390,
        "0x" + "f" * 390,
        "[[[a,a] for a in [[b]*50 for b in x]] for c in x]",
        "[1]*10**9",
        "x*1000000000*1000000000",
        "[1]*(0-5)+x*99",
        "sum([x,x,x],x)",
        "[[sorted(x+[a])for a in x]for b in x]",
    ],
)
def test_no_value_is_large_at_any_depth_and_no_operation_is_long(text):
    began = time.process_time()
    with pytest.raises(ProgramError):
        evaluate(text, {"x": list(range(90))})
    assert passed([{"metadata": json.dumps({"tests": [[{"x": [1]}, 1]], "result": None})}], [text]) == [0.0]
    assert time.process_time() - began < 1


def test_values_within_the_bounds_nest():
    assert evaluate("[[[0]*9]*9]*9==[[[0]*9]*9]*9", {}) is True
    assert evaluate("[[v,v] for v in x][1:]", {"x": [1, 2]}) == [[2, 2]]
