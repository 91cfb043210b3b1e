import json

import pytest

from learning.data.rows import write_rows
from schemas.errors import GateError, StepError
from schemas.stages.python import Python
from tasks.context import Context, Result
from tasks.python import run


def double(context, *, factor: int = 2):
    """Multiply a number."""
    number = json.loads((context.input("data") / "n.json").read_text())
    assert context.input("inputs.data") == context.input("data")
    (context.output("result") / "n.json").write_text(json.dumps(number * factor))
    return {"number": number * factor}


def gguf(context):
    """Write what has the name of a GGUF file."""
    (context.output("result") / "model.gguf").write_bytes(b"GGUF")


def nothing(context):
    """Write nothing."""


def breaks(context):
    """Fail."""
    raise KeyError("lost")


def objects(context):
    """Write, but return what is no metric."""
    (context.output("result") / "x").write_text("x")
    return {"x": object()}


def told(context):
    """A Result of one's own."""
    (context.output("result") / "x").write_text("x")
    return Result({"a": 1.5}, {"b": [1]})


def prompts(context, *, good: bool = True):
    """Write rows."""
    write_rows(context.output("result"), "prompts" if good else "chat", [])
    if not good:
        (context.output("result") / "rows.parquet").unlink()
        (context.output("result") / "other.txt").write_text("x")


def refuses(context):
    """A gate of one's own."""
    raise GateError("too low")


@pytest.fixture
def call(tmp_path):
    def called(name, produces=None, **options):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "n.json").write_text("21")
        produces = produces or {"result": "directory"}
        use = {"use": f"{__name__}:{name}", **options}
        stage = Python.model_validate(
            {"kind": "python", "function": use, "inputs": {"data": "d"}, "produces": produces}
        )
        return run(stage, Context({"inputs.data": tmp_path / "data"}, tmp_path / "out", tmp_path / "c", seed=0))

    return called


def test_the_function_gets_inputs_and_options_and_its_numbers_are_metrics(call, tmp_path):
    assert call("double", factor=3) == Result({"number": 63})
    assert (tmp_path / "out" / "outputs" / "result" / "n.json").read_text() == "63"


def test_a_result_is_passed_on(call):
    assert call("told") == Result({"a": 1.5}, {"b": [1]})


@pytest.mark.parametrize(
    ("name", "produces", "options", "message"),
    [
        ("nothing", None, {}, "output 'result' is empty; write files to context.output"),
        ("double", {"result": "directory", "more": "directory"}, {}, "output 'more' is empty"),
        ("breaks", None, {}, r"KeyError: 'lost' \(.*test_python.py:\d+\)"),
        ("objects", None, {}, "must return None, a Result, or a dictionary"),
        ("double", None, {"factor": "many"}, "factor"),
        ("double", None, {"facto": 2}, "facto"),
        ("double", {"result": "policy"}, {}, "output 'result' is not a policy: it has no config.json"),
        ("gguf", {"result": "reward_model"}, {}, "output 'result' is not a reward_model: it has no config.json"),
        ("prompts", {"result": "chat"}, {}, "not chat rows, column.* completion missing"),
        ("prompts", {"result": "prompts"}, {"good": False}, "has no rows.parquet"),
        ("missing", None, {}, "has no function 'missing'"),
    ],
)
def test_failures_are_reported(call, name, produces, options, message):
    with pytest.raises(StepError, match=message):
        call(name, produces, **options)


def test_rows_of_the_declared_type_pass(call):
    assert call("prompts", {"result": "prompts"}) == Result()


def test_a_policy_may_be_a_gguf_file(call):
    assert call("gguf", {"result": "policy"}) == Result()


def test_a_gate_of_the_users_own_stays_a_gate(call):
    with pytest.raises(GateError, match="too low"):
        call("refuses")
