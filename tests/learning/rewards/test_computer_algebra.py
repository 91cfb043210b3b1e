"""Mathematical answers compared by math-verify, which reads what a model wrote in the sandbox only."""

import importlib.util
import sys

import pytest

from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import RewardUse

CASES = [
    ("1/2", r"so \boxed{0.5}", 1.0),
    (r"2\sqrt{2}", r"it is $\sqrt{8}$", 1.0),
    ("x^2+2x+1", r"\boxed{(x+1)^2}", 1.0),
    (r"\frac{\pi}{4}", r"\boxed{\arctan(1)}", 1.0),
    (r"\{1,2,3\}", r"\boxed{\{3,2,1\}}", 1.0),
    (r"\boxed{7}", "the answer is 7", 1.0),
    ("7", "the answer is 8", 0.0),
    ("7", r"\boxed{7} or \boxed{8}", 0.0),
    ("7", "", 0.0),
    ("7", "\ud800", 0.0),
    (None, "7", None),
]


def score(answers, completions, **options):
    rows = [{"id": str(i), "answer": answer, "metadata": "{}"} for i, answer in enumerate(answers)]
    use = RewardUse.model_validate({"use": "computer_algebra.math_verify", **options})
    return bind(use).ask(0, {"rows": rows, "completions": completions})


def test_equal_values_score_1_and_what_a_model_wrote_runs_nothing_here(tmp_path):
    canary = tmp_path / "canary"
    bombs = [r"\boxed{9^{9^{9^{9^9}}}}", f"__import__('pathlib').Path('{canary}').touch()", "[" * 2000]
    answers, completions, scores = zip(*CASES, strict=True)
    assert score([*answers, *["12"] * 3], [*completions, *bombs]) == [*scores, 0.0, 0.0, 0.0]
    assert not canary.exists()
    assert "math_verify" not in sys.modules, "the library is loaded in the sandbox's server only"
    assert score(["7"], ["7" + " " * 60], last=50) == [0.0]


def test_a_machine_without_the_library_is_told_what_to_do(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "math_verify" else find(name))
    with pytest.raises(StepError, match=r"pip install 'posttrain\[math\]'; `mathematics.equal` needs none"):
        score(["7"], ["7"])
