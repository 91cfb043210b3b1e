"""Every verb as a user types it: what it prints, what it returns, and never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli import main
from flows.commands import doctor
from flows.runs import lookup
from lineage.layout import Layout
from schemas.errors import PlanError
from tests.flows.checkout import REPOSITORY

LAB = '''
from pathlib import Path

from tasks.context import Context, Result


def number(context: Context, *, value: int = 1) -> dict[str, int]:
    """Write a number."""
    print("writing", value)
    (context.output("result") / "n.txt").write_text(str(value))
    return {"value": value}


def waits_for(context: Context, *, file: str) -> None:
    """Fail until a file is there."""
    print("looking for", file)
    if not Path(file).exists():
        raise RuntimeError("[/red] not there: [bold]" + file)
    (context.output("result") / "n.txt").write_text("1")


def gated(context: Context) -> Result:
    """Write a number that a gate refuses."""
    (context.output("result") / "n.txt").write_text("1")
    gates = {"gates": [{"metric": "accuracy", "passed": False, "on_fail": "stop"}]}
    return Result({"accuracy": 0.1}, gates, ["2 of 9 rows [bold] were dropped"])
'''
GOOD = """
name: good
stages:
  a: {kind: python, function: {use: "lab:number", value: 3}}
  b: {kind: python, function: {use: "lab:number", value: 4}, inputs: {x: a}}
"""
FAILS = """
name: fails
stages:
  a: {kind: python, function: {use: "lab:number", value: 3}}
  waiting: {kind: python, function: {use: "lab:waits_for", file: there.txt}, inputs: {x: a}}
  after: {kind: python, function: {use: "lab:number"}, inputs: {x: waiting}}
"""
GATE = """
name: gate
stages:
  judged: {kind: python, function: {use: "lab:gated"}}
  after: {kind: python, function: {use: "lab:number"}, inputs: {x: judged}}
"""


class Root:
    """A folder of a user, and posttrain in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name, text in {"lab.py": LAB, "good.yaml": GOOD, "fails.yaml": FAILS, "gate.yaml": GATE}.items():
            (folder / name).write_text(text)
        (folder / "pyproject.toml").write_text("")
        (folder / "binary.yaml").write_bytes(bytes(range(128, 256)))

    def __call__(self, *words: str, code: int = 0, **environment: str) -> str:
        """What a command said on both streams, after a look at its exit code."""
        done = self.done([sys.executable, "-m", "flows.cli", *words], **environment)
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        if words[0] != "logs":
            assert "Traceback" not in output, output
        return output

    def here(self, words, monkeypatch, capsys) -> tuple[int, str]:
        """Exit code and what was said, by the entry point called in this process."""
        monkeypatch.chdir(self.folder)
        monkeypatch.delenv("POSTTRAIN_ROOT", raising=False)
        monkeypatch.setattr(sys, "argv", ["posttrain", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    def done(self, command, shell: bool = False, **environment: str) -> subprocess.CompletedProcess:
        kept = {k: v for k, v in os.environ.items() if k not in ("POSTTRAIN_ROOT", "COLUMNS")}
        env = {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment}
        return subprocess.run(command, shell=shell, cwd=self.folder, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    return Root(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    root = Root(tmp_path_factory.mktemp("ran"))
    root.said = root("run", "good.yaml", "--executor", "inprocess")
    return root


@pytest.mark.parametrize("verb", ["validate", "plan", "run", "why"])
@pytest.mark.parametrize(
    ("file", "what"), [("nope.yaml", "no such file"), (".", "this is a folder"), ("binary.yaml", "not UTF-8")]
)
def test_what_is_no_recipe_is_refused(empty, verb, file, what, monkeypatch, capsys):
    code, output = empty.here([verb, file, *(["a"] if verb == "why" else [])], monkeypatch, capsys)
    assert code == 3
    assert what in output


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["rn", "good.yaml"], "Did you mean 'run'"),
        (["plan", "--bogus", "good.yaml"], "No such option: --bogus"),
        (["plan"], "Missing argument"),
        (["run", "good.yaml", "--executor", "slurm"], "'slurm' is not one of"),
        (["validate", "good.yaml", "--profile", "tiny"], "no profile `tiny`"),
        (["plan", "good.yaml", "--set", "a"], "wants key.path=value"),
        (["plan", "good.yaml", "--set", "stages.c.seed=1"], "keys here: a, b"),
        (["plan", "good.yaml", "--set", "stages.a.sed=1"], "did you mean `seed`?"),
        (["plan", "good.yaml", "--set", "stages.a.seed=word"], "should be a valid integer, this is 'word'"),
        (["plan", "good.yaml", "--set", "stages.a.function={"], "not YAML"),
        (["plan", "good.yaml", "--to", "c"], "steps: a, b"),
        (["why", "good.yaml", "c"], "steps: a, b"),
        (["status"], "no runs in"),
        (["resume"], "no runs in"),
        (["report"], "no runs in"),
        (["logs", "a"], "no runs in"),
        (["lineage"], "name a step"),
        (["lineage", "zebra"], "nothing here is called 'zebra'"),
        (["query", "selct 1"], "syntax error"),
        (["query", "select * from stepz"], "tables: steps"),
        (["query", "drop table steps"], "this is DROP"),
        (["query", ""], "this is empty"),
        (["query", "select * from read_csv('lab.py')"], "disabled by configuration"),
        (["init", "good.yaml"], "is there already"),
        (["init", "good.yaml/new.yaml"], "good.yaml is there already"),
        (["init", "/proc/nowhere/new.yaml"], "cannot be written"),
    ],
    ids=lambda value: "-".join(value)[:40].replace("/", "_") if isinstance(value, list) else "",
)
def test_a_mistake_is_reported_with_what_to_do(empty, words, advice, monkeypatch, capsys):
    code, output = empty.here(words, monkeypatch, capsys)
    assert code == 3
    assert advice in output


def test_validate_says_of_each_recipe_how_it_is(empty):
    output = empty("validate", "nope.yaml", "good.yaml", code=3)
    assert "good.yaml: ok, 2 steps" in output
    assert "nope.yaml:1:1: no such file" in output


def test_a_state_folder_that_cannot_be_written_is_reported(empty):
    (empty.folder / "a_file").write_text("")
    output = empty("run", "good.yaml", "--executor", "inprocess", code=3, POSTTRAIN_ROOT=str(empty.folder / "a_file"))
    assert "cannot be written" in output
    assert "POSTTRAIN_ROOT" in output


def test_a_starter_is_a_recipe(empty):
    assert "posttrain validate mine.yaml" in empty("init", "mine.yaml")
    assert "mine.yaml: ok, 5 steps" in empty("validate", "mine.yaml")


def test_help_of_every_verb(empty):
    listed = empty("--help")
    for verb in ("validate", "plan", "run", "resume", "status", "logs", "why", "report", "lineage", "query", "schema"):
        assert f" {verb} " in listed
    assert "--set" in empty("run", "--help")


def test_doctor_looks_at_the_machine(empty):
    assert "torch" in empty("doctor")


def test_a_run_says_what_it_does_without_a_terminal(ran):
    lines = ran.said.splitlines()
    assert lines[0] == "a: running"
    assert any(line.startswith("a: done in") for line in lines)
    assert lines[-1].startswith("run ")
    report = ran.folder / lines[-1].rpartition("report ")[2]
    assert report.is_file()
    assert "INFO" not in ran.said


def test_a_second_run_does_nothing_and_starts_nothing(ran):
    code = (
        "import sys; sys.argv = ['posttrain', 'run', 'good.yaml']\n"
        "from flows.cli import main\n"
        "try: main()\n"
        "finally: print([m for m in ('ray', 'prefect', 'mlflow', 'torch') if m in sys.modules])\n"
    )
    done = ran.done([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert "a: cached" in done.stdout
    assert "b: cached" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_was_run_can_be_asked_about(ran):
    status = ran("status")
    assert "exit code 0" in status
    assert ran("logs", "a").strip() == "writing 3"
    assert "steps: a, b" in ran("logs", "c", code=3)
    assert "no run `never`" in ran("status", "never", code=3)
    assert "b: HIT" in ran("why", "good.yaml", "b")
    assert "function.value: 4 → 5" in ran("why", "good.yaml", "b", "--set", "stages.b.function.value=5")
    assert "inputs.x ← a" in ran("lineage", "b")
    assert "all as recorded" in ran("lineage", "--verify")
    assert Path(ran("report").strip()).is_file()
    rows = json.loads(ran("query", "--json", "select step, kind from steps order by step"))
    assert rows == [{"step": "a", "kind": "python"}, {"step": "b", "kind": "python"}]


def test_runs_and_their_outputs_are_listed(ran):
    layout = Layout(ran.folder)
    records = lookup.list_run_records(layout)
    assert [(r.recipe, r.steps, r.done, r.outcome) for r in records][-1] == ("good", 2, 2, "ok")
    assert json.loads(ran("runs", "--json"))[-1]["exit_code"] == 0
    assert [(step["step"], step["kind"]) for step in lookup.list_step_records(records[-1].run, layout)] == [
        ("a", "python"),
        ("b", "python"),
    ]
    folder = lookup.find_output("b", records[-1].run, layout)
    assert (folder / "n.txt").read_text() == "4"
    assert lookup.find_output("b.result", records[-1].run, layout) == folder
    for step, advice in (("c", "steps: a, b"), ("b.model", "outputs: result")):
        with pytest.raises(PlanError, match=advice):
            lookup.find_output(step, records[-1].run, layout)


def test_a_dry_run_runs_nothing(ran):
    before = len(lookup.list_run_records(Layout(ran.folder)))
    assert "2 of 2 steps are cached" in ran("run", "good.yaml", "--dry-run")
    plan = json.loads(ran("run", "good.yaml", "--dry-run", "--json"))
    assert [step["name"] for step in plan["steps"]] == ["a", "b"]
    assert len(lookup.list_run_records(Layout(ran.folder))) == before


def test_what_a_run_measured_is_also_printed_as_json(ran):
    for words in (("run", "good.yaml", "--executor", "inprocess"), ("resume", "--executor", "inprocess")):
        ended = json.loads(ran.done([sys.executable, "-m", "flows.cli", *words, "--json"]).stdout)
        assert ended["exit_code"] == 0
        assert [(step["step"], step["state"]) for step in ended["steps"]] == [("a", "cached"), ("b", "cached")]
        assert ended["steps"] == lookup.list_step_records(ended["run"], Layout(ran.folder))
        assert [record["step"] for record in ended["results"]] == ["a", "b"]


def test_why_is_also_printed_as_json(ran):
    assert json.loads(ran("why", "good.yaml", "b", "--json"))["verdict"] == "HIT"
    asked = json.loads(ran("why", "good.yaml", "a", "--set", "stages.a.function.value=4", "--json"))
    assert (asked["step"], asked["verdict"], asked["why"]) == ("a", "MISS", asked["differences"][0])


def test_a_plan_as_json_is_a_plan(ran):
    plan = json.loads(ran("plan", "good.yaml", "--json"))
    assert [step["name"] for step in plan["steps"]] == ["a", "b"]
    assert len(plan["steps"][0]["key"]) == 64


def test_checks_pins_and_locks_are_also_printed_as_json(ran):
    (record,) = json.loads(ran("validate", "good.yaml", "--json"))
    assert record == {"file": "good.yaml", "ok": True, "warnings": [], "problems": [], "steps": 2}
    (record,) = json.loads(ran("validate", "good.yaml", "--json", "--set", "stages.b.functoin=1", code=3))
    assert (record["ok"], record["problems"][0]["path"]) == (False, "stages.b.functoin")
    assert "function" in record["problems"][0]["advice"]
    ran("pin", "a")
    assert [pinned["word"] for pinned in json.loads(ran("pin", "--json"))] == ["a"]
    assert "leave the target out" in ran("pin", "a", "--json", code=3)
    ran("pin", "a", "--remove")
    assert json.loads(ran("pin", "--json")) == []
    locked = json.loads(ran("lock", "good.yaml", "--json"))
    assert (locked["file"], list(locked["steps"])) == ("good.lock", ["a", "b"])
    (ran.folder / "good.lock").unlink()


def test_the_checks_of_doctor_are_also_printed_as_json(monkeypatch, capsys):
    findings = [doctor.Finding(True, True, "all is here"), doctor.Finding(False, False, "0 GPUs")]
    monkeypatch.setattr(doctor, "check_machine", lambda: iter(findings))
    assert doctor.report_machine(Console(), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)[1] == {"ok": False, "required": False, "message": "0 GPUs"}
    findings.append(doctor.Finding(False, True, "torch is missing"))
    assert doctor.report_machine(Console(), as_json=False) == 1
    assert "no   torch is missing" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["status"], ["plan", "good.yaml"], ["query", "select * from steps"]])
def test_a_narrow_terminal_cuts_nothing_off_its_edge(ran, words):
    assert max(len(line) for line in ran(*words, COLUMNS="60").splitlines()) <= 60


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_reader_may_leave(ran, options):
    command = f"{sys.executable} -m flows.cli query {options} 'select range from range(200000)' | head -1"
    done = ran.done(["bash", "-c", f"set -o pipefail; {command}"])
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_a_failed_step_ends_the_run_and_resume_continues_it(ran):
    output = ran("run", "fails.yaml", "--executor", "inprocess", code=1)
    assert "failed waiting: " in output
    assert "[/red] not there: [bold]there.txt" in output
    assert "after: blocked (waiting failed)" in output
    assert "posttrain resume" in output
    assert "posttrain logs waiting" in output
    log = ran("logs", "waiting")
    assert log.startswith("looking for there.txt")
    assert "RuntimeError" in log
    assert "has not started" in ran("logs", "after", code=3)
    status = ran("status")
    assert "exit code 1" in status
    assert "[/red] not there" in status
    (ran.folder / "there.txt").write_text("")
    again = ran("resume", "--executor", "inprocess")
    assert "a: cached" in again
    assert "after: done" in again
    assert "exit code 0" in ran("status")


def test_a_gate_ends_the_run_with_its_own_code(ran):
    output = ran("run", "gate.yaml", "--executor", "inprocess", code=2)
    assert "after: blocked (the gate of judged failed: accuracy)" in output
    assert "gate failed judged: accuracy" in output
    assert "judged: 2 of 9 rows [bold] were dropped" in output
    status = ran("status")
    assert "exit code 2" in status
    assert "gate failed: accuracy" in status
    ran("resume", "--executor", "inprocess", code=2)
