"""Cost of orchestration when many steps run at the same time: `flows.execution.execute` over steps that do nothing.

    python benchmarks/wide_plan.py [--width 200] [--seconds 10]

One step, then `--width` concurrent steps that need it and take `--seconds` each, in an executor that only waits. One
JSON line: seconds of processor time of this process to plan, per step to schedule, watch and report (excluding the
step's own work and publishing), and to find that all artifacts exist already.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.execution.events import Event
    from flows.steps.step_spec import StepSpec
    from schemas.manifest import Manifest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WORK = """
def nothing(context, *, mark: int = 0):
    (context.output("result") / "n.txt").write_text(str(mark))
    return {"mark": mark}
"""
RECIPE = """
name: wide
stages:
  first: {{kind: python, function: {{use: "wide_work:nothing", mark: 0}}}}
  many:
    kind: python
    matrix: {{n: {numbers}}}
    function: {{use: "wide_work:nothing", mark: "${{matrix.n}}"}}
    inputs: {{x: first}}
"""


class Waiting:
    """An executor whose steps take a time and hold nothing; `spent` is the processor time of the steps themselves."""

    def __init__(self, seconds: float):
        self.seconds, self.spent, self.lock = seconds, 0.0, threading.Lock()

    def check(self, steps: list[Any]) -> None:
        """Everything fits."""

    def submit(self, spec: "StepSpec") -> "Handle":
        """Begin to wait."""
        return Handle(self, spec, time.monotonic() + self.seconds)

    def close(self) -> None:
        """Nothing is held."""


class Handle:
    """A step that is over at a time."""

    def __init__(self, executor: Waiting, spec: "StepSpec", until: float):
        self.executor, self.spec, self.until = executor, spec, until

    def wait(self, seconds: float) -> bool:
        """Whether it is over, after at most that long."""
        time.sleep(max(0.0, min(seconds, self.until - time.monotonic())))
        return self.until <= time.monotonic()

    def result(self) -> "Manifest":
        """Do and publish it now, one step at a time."""
        from flows.steps.step import run_step

        with self.executor.lock:
            began = time.thread_time()
            manifest = run_step(self.spec)
            self.executor.spent += time.thread_time() - began
            return manifest

    def kill(self) -> None:
        """Nothing runs."""


class Silent:
    """A reporter that counts."""

    events = 0

    def report(self, event: "Event") -> None:
        """One more."""
        self.events += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POSTTRAIN_ROOT"] = folder
        os.chdir(folder)
        Path("wide_work.py").write_text(WORK)
        Path("recipe.yaml").write_text(RECIPE.format(numbers=list(range(1, options.width + 1))))
        sys.path.insert(0, folder)
        print(json.dumps(measured(Path(folder), options)))


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Processor time of each part."""
    from flows.execution.execute import Execution, execute_plan
    from flows.planning.recipe_plan import plan_recipe
    from lineage.layout import Layout

    layout, clock = Layout(folder), [time.process_time()]
    plan = plan_recipe(folder / "recipe.yaml", layout)
    for step in plan.steps:
        layout.work(step.key).mkdir(parents=True, exist_ok=True)
    clock.append(time.process_time())
    executor, reporter = Waiting(options.seconds), Silent()
    states = execute_plan(Execution(plan, layout, executor, reporter, "first"))
    clock.append(time.process_time())
    again = execute_plan(Execution(plan, layout, executor, Silent(), "again"))
    clock.append(time.process_time())
    assert {state.state for state in states.values()} == {"done"}
    assert {state.state for state in again.values()} == {"cached"}
    count = len(plan.steps)
    return {
        "benchmark": "wide_plan",
        "steps": count,
        "seconds_each": options.seconds,
        "plan_s": round(clock[1] - clock[0], 3),
        "per_step_s": round((clock[2] - clock[1] - executor.spent) / count, 5),
        "work_and_publish_s": round(executor.spent / count, 5),
        "again_s": round(clock[3] - clock[2], 3),
        "events": reporter.events,
    }


if __name__ == "__main__":
    main()
