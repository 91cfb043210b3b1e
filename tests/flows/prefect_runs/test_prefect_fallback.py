"""When Prefect stays away in the middle of a run, the steps that are left are done without it."""

import httpx
import pytest

import flows.prefect_runs.prefect_fallback
from flows.execution.execute import Execution
from flows.planning.recipe_plan import plan_recipe
from flows.prefect_runs.prefect_fallback import run_flow_with_fallback
from flows.steps.in_process import InProcess
from lineage.layout import Layout
from tests.small_steps import NUMBER, two_numbers

RECIPE = two_numbers("shown", "unshown_work")


class Heard:
    def __init__(self):
        self.events = []

    def report(self, event):
        self.events.append((event.get("step"), event.get("state")))


@pytest.mark.parametrize("after_the_end", [False, True])
def test_the_rest_is_done_and_the_end_is_reported_once(tmp_path, monkeypatch, capsys, after_the_end):
    (tmp_path / "unshown_work.py").write_text(NUMBER)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    layout, heard, ends = Layout(tmp_path), Heard(), []
    plan = plan_recipe(tmp_path / "recipe.yaml", layout)
    execution = Execution(plan, layout, InProcess(), heard, "run")

    def breaks(execution, ended):
        execution.reporter = None
        for step in execution.plan.steps[: 2 if after_the_end else 1]:
            execution.reporter = heard
            execution.perform(step)
        if after_the_end:
            ended()
        execution.reporter = None
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(flows.prefect_runs.prefect_fallback, "run_flow", breaks)
    run_flow_with_fallback(execution, lambda: ends.append(dict(execution.states)))
    assert {name: state.state for name, state in execution.states.items()} == {"a": "done", "b": "done"}
    assert [event for event in heard.events if event[1] == "done"] == [("a", "done"), ("b", "done")]
    assert [set(states) for states in ends] == [{"a", "b"}]
    assert "Prefect's server no longer answers (refused)" in capsys.readouterr().err


def test_other_errors_are_not_taken_for_a_lost_server(monkeypatch):
    def breaks(execution, ended):
        raise ValueError("no")

    class Nothing:
        reporter = None

    monkeypatch.setattr(flows.prefect_runs.prefect_fallback, "run_flow", breaks)
    with pytest.raises(ValueError, match="no"):
        run_flow_with_fallback(Nothing(), lambda: None)
