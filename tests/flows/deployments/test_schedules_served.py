"""Schedules on what `posttrain up` runs: Prefect's real server, its worker, and the watcher of changes."""

import json
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

LAB = """
import time

def number(context, *, value: int = 1, seconds: float = 0.0):
    time.sleep(seconds)
    (context.output("result") / "n.txt").write_text(str(value))

def size(context):
    (context.output("result") / "n.txt").write_text(str(len((context.input("inputs.data") / "x").read_text())))
"""
STAGES = """
stages:
  a: {kind: python, function: {use: "lab:number", value: 3}}
  b: {kind: python, function: "lab:number", inputs: {x: a}}
"""
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class House:
    """A checkout whose servers are up, or down."""

    def __init__(self, checkout, processes):
        self.checkout, self.processes, self.wait_for = (
            checkout("house", STAGES, {"lab": LAB}),
            processes,
            processes.wait_for,
        )
        self.root = self.checkout.layout.root
        self.up()

    def up(self):
        self.process = self.checkout.start("up", "--prefect-port", "0", "--mlflow-port", "0", "--limit", "8")
        output = self.checkout.output
        self.wait_for(lambda: "Ctrl-C stops everything" in output.read_text() or self.process.poll() is not None, 300)
        assert self.process.poll() is None, output.read_text()
        self.api = json.loads((self.checkout.layout.state / "up.json").read_text())["prefect"]

    def kill(self):
        """kill -9 of everything: servers, worker, watcher, and the flow runs that go on."""
        self.processes.kill(self.process)
        for process in self.checkout.processes():
            process.kill()

    def deploy(self, **recipes):
        for name, text in recipes.items():
            (self.root / f"{name}.yaml").write_text(f"name: {name}\n{text}")
        files = [f"{name}.yaml" for name in recipes]
        # A server on a busy machine may take longer to answer than `deploy` waits.
        assert self.wait_for(lambda: self.checkout.start("deploy", *files).wait() == 0)

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.api}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def runs(self, name):
        """Flow runs of a recipe whose time has come, in the order in which they were due."""
        body = {"deployments": {"name": {"any_": [name]}}, "sort": "EXPECTED_START_TIME_ASC"}
        now = datetime.now(UTC)
        return [r for r in self.ask("/flow_runs/filter", body) if due(r) <= now]

    def ended(self, name, count):
        """The flow runs of a recipe when that many have ended, and no other was due."""

        def all_ended():
            runs = self.runs(name)
            return runs if len(runs) >= count and all(r["state_type"] in FINAL for r in runs) else None

        return self.wait_for(all_ended, 600)


def due(run):
    return datetime.fromisoformat(run["expected_start_time"])


def said(run):
    return run["state_name"], run["state"]["message"]


def times(first, count, apart, more=""):
    """A rule with `count` due times from `first` on, and one long after them."""
    moments = [first + timedelta(seconds=apart * i) for i in range(count)] + [first + timedelta(hours=3)]
    return f"schedule:\n  rrule: 'RDATE:{','.join(f'{m:%Y%m%dT%H%M%S}' for m in moments)}'\n{more}"


def soon(seconds):
    return (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)


@pytest.fixture
def house(checkout, processes):
    made = House(checkout, processes)
    yield made
    made.kill()


def test_a_schedule_fires_twice_and_the_second_run_says_that_nothing_changed(house):
    first = soon(60)
    house.deploy(twice=times(first, 2, 90) + STAGES)
    runs = house.ended("twice", 2)
    assert [due(run) for run in runs] == [first, first + timedelta(seconds=90)]
    assert all(run["auto_scheduled"] for run in runs)
    assert [said(run) for run in runs] == [("Completed", "2 done"), ("Completed", "nothing changed: 2 of 2 cached")]
    print([(run["start_time"], run["total_run_time"]) for run in runs])
    logs = [house.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}}) for run in runs]
    assert [any("Ray" in line["message"] for line in log) for log in logs][1] is False


def test_after_a_downtime_over_three_due_times_the_policy_of_the_recipe_holds(house):
    first, apart = soon(150), 15
    policies = {
        policy: times(first, 3, apart, f"  catch_up: {policy}\n") + STAGES for policy in ("skip", "latest", "all")
    }
    house.deploy(**policies)
    house.wait_for(
        lambda: len(house.ask("/flow_runs/filter", {"flow_runs": {"state": {"name": {"any_": ["Scheduled"]}}}})) >= 9
    )
    assert datetime.now(UTC) < first - timedelta(seconds=15), (
        "this machine was too slow to deploy before the first due time"
    )
    house.kill()
    last = first + timedelta(seconds=2 * apart)
    house.wait_for(lambda: datetime.now(UTC) > last + timedelta(seconds=70), 400)
    house.up()
    runs_by_policy = {policy: house.ended(policy, 3) for policy in policies}
    for policy, runs in runs_by_policy.items():
        print(policy, [(said(run), run["start_time"], run["end_time"]) for run in runs])
    skipped = {policy: ("Skipped", f"Skipped: missed while down (catch_up: {policy})") for policy in policies}
    assert [said(run) for run in runs_by_policy["skip"]] == [skipped["skip"]] * 3
    assert [said(run) for run in runs_by_policy["latest"]][:2] == [skipped["latest"]] * 2
    assert [run["state_name"] for run in runs_by_policy["latest"]][2] == "Completed"
    assert [run["state_name"] for run in runs_by_policy["all"]] == ["Completed"] * 3
    began = [run["start_time"] for run in runs_by_policy["all"]]
    assert began == sorted(began)
    assert all(
        a["end_time"] <= b["start_time"] for a, b in zip(runs_by_policy["all"], runs_by_policy["all"][1:], strict=False)
    )


WATCHES = """
schedule:
  on_change: ["path:./data"]
stages:
  a: {kind: python, function: "lab:size", inputs: {data: "path:./data"}}
"""


def test_a_change_of_a_file_starts_exactly_one_run(house):
    (house.root / "data").mkdir()
    (house.root / "data/x").write_text("1")
    house.deploy(waits=WATCHES)
    memory = house.checkout.layout.state / "watch/waits.json"
    house.wait_for(memory.is_file)
    assert house.runs("waits") == []
    (house.root / "data/x").write_text("22")
    run = house.ended("waits", 1)[0]
    assert run["state_name"] == "Completed", said(run)
    assert run["tags"].count("on-change") == 1
    assert "path:./data" in run["tags"]
    history = house.ask(f"/flow_run_states/?flow_run_id={run['id']}")
    assert any("path:./data: " in (state["message"] or "") for state in history)
    (house.root / "data/x").write_text("333")
    assert len(house.ended("waits", 2)) == 2
    assert json.loads(memory.read_text())["changes"] == 2


LONG = """
stages:
  a: {kind: python, function: {use: "lab:number", value: %d, seconds: 90}}
"""


def test_a_due_time_during_a_run_is_skipped_waits_or_cancels_it(house):
    first = soon(60)
    overlaps = {"skip": 1, "queue": 2, "cancel": 3}
    recipes = {o: times(first, 2, 75, f"  overlap: {o}\n") + LONG % n for o, n in overlaps.items()}
    house.deploy(**recipes)
    runs_by_overlap = {overlap: house.ended(overlap, 2) for overlap in overlaps}
    for overlap, runs in runs_by_overlap.items():
        print(overlap, [(said(run), run["start_time"], run["end_time"]) for run in runs])
    before, after = runs_by_overlap["skip"]
    assert said(before) == ("Completed", "1 done")
    assert said(after) == ("Skipped", f"Skipped: {before['name']} was still running (overlap: skip)")
    before, after = runs_by_overlap["queue"]
    assert (said(before), said(after)) == (("Completed", "1 done"), ("Completed", "nothing changed: 1 of 1 cached"))
    assert before["end_time"] <= after["start_time"]
    before, after = runs_by_overlap["cancel"]
    assert (before["state_type"], said(after)) == ("CANCELLED", ("Completed", "1 done"))


def test_a_run_that_was_killed_with_everything_is_owned_up_to_and_keeps_no_other_from_running(house):
    first = soon(60)
    house.deploy(killed=times(first, 2, 330, "  overlap: skip\n") + LONG % 4)
    house.wait_for(lambda: [r for r in house.runs("killed") if r["state_type"] == "RUNNING"], 300)
    house.wait_for(lambda: list(house.checkout.layout.state.glob("work/*/lock")), 300)
    house.kill()
    house.up()
    house.wait_for(lambda: house.runs("killed")[0]["state_type"] == "CRASHED", 300)
    assert "its process died" in house.runs("killed")[0]["state"]["message"]
    assert datetime.now(UTC) < first + timedelta(seconds=330), "this machine was too slow to be up again in time"
    assert [said(run) for run in house.ended("killed", 2)][1] == ("Completed", "1 done")
