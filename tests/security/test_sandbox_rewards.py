"""Milestones, prices and answers come from outside of the process that they judge: hostile programs gain nothing."""

from pathlib import Path

import pytest
import yaml

from learning.agents.made import call_made_tool_
from learning.sandbox.run import available
from learning.toy_tasks.environments.program import Environment
from learning.toy_tasks.fits import GIVEN, ROWS, fits, make_table, score_method, score_predictions
from schemas.agent import MadeTool
from schemas.errors import StepError

PROGRAMS = Path(__file__).parent / "programs"
ROW = fits(size=1, split="train")[0]
TABLE = make_table(ROW)
CREDIT = 0.3
SCORES = {
    "mean": score_method("mean", TABLE),
    "line": score_method("line", TABLE),
    "zeros": score_predictions([0.0] * (ROWS - GIVEN), TABLE),
}
pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))


def entries(name):
    return [pytest.param(one, id=one["name"]) for one in yaml.safe_load((PROGRAMS / f"{name}.yaml").read_text())]


@pytest.mark.parametrize("one", entries("rewards"))
def test_a_program_is_paid_and_charged_for_what_was_done_for_it(one):
    environment = Environment(language=one.get("language", "python"), seconds=one.get("seconds", 60))
    step = environment.begin(ROW, 0).step(one["code"])
    of = SCORES.get(one.get("score"))
    rewards = [CREDIT * one["reached"] / 3 + (1 - CREDIT) * (of or 0.0)]
    if "or_reached" in one:  # by what the machine lets the parent read
        rewards += [CREDIT * one["or_reached"] / 3, CREDIT * one["or_reached"] / 3 + (1 - CREDIT) * SCORES["zeros"]]
    assert any(step.reward == pytest.approx(reward) for reward in rewards), step
    assert step.seconds == one["units"]
    if "or_reached" not in one:
        assert step.ok == (of is not None)


@pytest.mark.parametrize("one", entries("tools"))
def test_a_tool_answers_by_what_its_function_returns(one):
    tool = {"name": "twice", "code": one["code"], "tests": [{"query": "a", "answer": "aa"}], "seconds": 60}
    tool = MadeTool.model_validate(tool)
    if "fails" in one:
        with pytest.raises(ValueError, match=one["fails"]):
            call_made_tool_("a", tool=tool)
        return
    answer = call_made_tool_("a", tool=tool)
    assert len(answer) == one["length"] if "length" in one else answer == one["answer"]


def test_prices_are_those_of_the_kit():
    with pytest.raises(StepError, match="costs of fit: the kit has load, mean, line, save"):
        Environment(costs={"fit": 1.0})
    assert Environment(costs={"save": 5.0, "load": 1.0}).begin(ROW, 0).step("load mean save").seconds == 7
    assert Environment(costs={}).begin(ROW, 0).step("load mean save").seconds is None


def test_a_program_that_reads_the_rows_has_no_time_for_a_second_action():
    """Its price is noted first, so that what it did with the rows comes after the end of the time."""
    code = "import csv\nrows = list(csv.reader(open('train.csv')))\nopen('submission.csv', 'w').write('0\\n' * 20)"
    late = Environment(language="python", budget=10.0).begin(ROW, 0)
    late.step("pass")
    cut = late.step(code)
    assert (cut.seconds, cut.reward, cut.done, cut.observation) == (9.0, 0.0, True, "time is over")
