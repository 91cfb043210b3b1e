"""What a recipe promotes, when it does not, and what is said of it: through the command line."""

import io
import json
import re
import shutil

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from rich.console import Console
from typer.testing import CliRunner

from flows.champions.promotion import check_promotable, promote_step
from flows.champions.tables import show_history
from flows.cli import app, main
from flows.planning.recipe_plan import plan_recipe
from flows.publishing.hub import push_to_hub
from lineage.artifacts.store import Store
from lineage.audit import log as audit_log
from lineage.audit.approvals import append_decision, read_decisions
from lineage.audit.chain import find_signature_problem
from lineage.audit.log import read_account
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.registry.champions import find_champion, read_standing
from lineage.tracing.evidence import collect_evidence, find_promoting_evaluations
from schemas.errors import GateError
from tests.flows.publishing.test_hub import serve_hub
from tests.small_steps import TINY_DEFAULTS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
RECIPE = (
    """\
name: small
seed: 3
promote: {model: two, gate: exam, name: chat}
"""
    + TINY_DEFAULTS
    + """\
stages:
  one: {kind: init}
  two: {kind: init, seed: 4}
  three: {kind: init, seed: 5}
  exam:
    kind: evaluate
    models: {one: one, two: two}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}]
    max_completion_length: 4
    num_bootstrap: 100
    gate: {metric: accuracy, min: 0.0}
"""
)
USES = """\
name: uses
stages:
  exam:
    kind: evaluate
    model: mlflow:chat@champion
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}]
    max_completion_length: 4
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A checkout whose recipe has run once."""
    folder = tmp_path_factory.mktemp("promotion")
    (folder / "small.yaml").write_text(RECIPE)
    (folder / "uses.yaml").write_text(USES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTTRAIN_ROOT", str(folder))
        patch.setenv("POSTTRAIN_USER", "ada")
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        lab = Lab(folder)
        lab.first = lab("run", "small.yaml", "--executor", "inprocess")
        yield lab


class Lab:
    def __init__(self, folder):
        self.layout = Layout(folder)

    def __call__(self, *words, code=0):
        """What a verb prints; errors on purpose included."""
        done = CliRunner().invoke(app, list(words))
        if done.exception is not None and hasattr(done.exception, "exit_code"):
            assert done.exception.exit_code == code, done.exception
            return str(done.exception)
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    def run(self, *changes, code=0):
        """What a run of the recipe with these changes in its file prints."""
        file = self.layout.root / "small.yaml"
        recipe = yaml.safe_load(RECIPE)
        for path, _, value in (change.partition("=") for change in changes):
            place = recipe
            *above, last = path.split(".")
            for key in above:
                place = place[key]
            place[last] = yaml.safe_load(value)
        file.write_text(yaml.safe_dump(recipe, sort_keys=False))
        try:
            return self("run", "small.yaml", "--executor", "inprocess", code=code)
        finally:
            file.write_text(RECIPE)

    def made(self, step):
        return [m for m in Store(self.layout).manifests() if m.step == step]

    @property
    def version(self):
        return find_champion(self.layout, "chat").version


def test_the_story_of_a_champion(lab):
    """One test, for its steps follow from one another."""
    (two,), (exam,) = lab.made("two"), lab.made("exam")
    assert f"champion of chat: none → version 1, two ({two.key[:12]}), by exam" in lab.first
    now, plan = find_champion(lab.layout, "chat"), plan_recipe("small.yaml", lab.layout)
    assert (now.version, now.key, now.digest) == (1, two.key, two.outputs["model"].digest)
    assert now.by.evidence == {
        "gate": "exam",
        "key": exam.key,
        "run": exam.run,
        "recipe": "small",
        "gates": [exam.details["gates"][0]["text"]],
        "committed": {"version": "not under version control", "digest": digest_of(plan.resolved), "edited": []},
    }
    assert now.by.who == f"ada (claimed by {read_account()})"
    output = f"champion of chat unchanged: exam made two ({two.key[:12]}) champion before, on {now.since[:10]}"
    assert output in lab.run()  # all there: nothing moves

    # A gate that fails, stopping or warning, now or as found in the store: no promotion.
    refused = "champion of chat unchanged: the gate of exam did not pass: accuracy of two 0.0000, wanted >= 0.5"
    strict = ("stages.exam.gate.min=0.5", "promote.model=two", "stages.two.seed=6")
    for _ in range(2):
        assert refused in lab.run(*strict, code=2)
    assert refused in lab.run(*strict, "stages.exam.gate.on_fail=warn")
    # Nor without the gate's own stage, or when it waits for a person.
    part = lab("run", "small.yaml", "--executor", "inprocess", "--to", "two")
    assert "champion of chat unchanged: exam is not part of this run" in part
    waits = (*strict, "stages.exam.gate.on_fail=approve")
    lab.run(*waits, code=2)
    assert lab.version == 1

    # A person who approves lets it through, and the history says who and why.
    waiting = lab.made("exam")[-1]
    append_decision(
        lab.layout, waiting.key, 0, "approve", name="Grace", reason="the exam is too hard", step="exam", run="r"
    )
    assert "champion of chat: version 1 → version 2" in lab.run(*waits)
    (text,) = find_champion(lab.layout, "chat").by.evidence["gates"]
    assert re.search(r"wanted >= 0\.5; approved by Grace at .*: the exam is too hard", text)

    # Back again; running what made version 2 once more does not undo that.
    assert "champion of chat: version 2 → version 1" in lab("rollback", "chat", "--why", "it swears")
    for note in (lab.layout.state / "promoted", None):
        output = lab.run(*waits)
        assert (
            f"champion of chat unchanged: exam made two ({lab.made('two')[-1].key[:12]}) champion before, on" in output
        )
        assert lab.version == 1
        if note:
            shutil.rmtree(note)  # as in another checkout: MLflow knows it too

    table = lab("champions", "chat")
    for word in ("promote", "rollback", "it swears", "ada", "too hard"):
        assert word in table
    listed = json.loads(lab("champions", "--json"))
    assert [(c["name"], c["version"], c["by"]["action"]) for c in listed] == [("chat", 1, "rollback")]
    assert [m.action for m in read_standing(lab.layout, "chat").moves] == ["promote", "promote", "rollback"]
    actions = [e["action"] for e in audit_log.read_entries(lab.layout) if e["facts"].get("model") == "chat"]
    assert actions == ["promote", "promote", "rollback"]


def test_by_hand_only_what_an_evaluation_has_proven(lab):
    (one,), exams = lab.made("one"), lab.made("exam")
    passed, failed = exams[0], exams[-1]
    refused = lab("promote", one.key, "--gate", passed.key, "--name", "chat", code=2)
    assert refused == f"no gate of exam ({passed.key[:12]}) tests one"
    refused = lab("promote", "three", "--gate", passed.key, "--name", "chat", code=2)
    assert "did not evaluate three" in refused
    assert "did not evaluate two" in lab("promote", lab.made("two")[0].key, "--gate", failed.key, "--name", "x", code=2)
    output = lab("promote", lab.made("two")[0].key, "--gate", passed.key, "--name", "other")
    assert output.startswith("champion of other: none → version 1, two")
    assert "is the champion of other already" in lab(
        "promote", lab.made("two")[0].key, "--gate", passed.key, "--name", "other"
    )
    live = {"canary": {"reason": "look 1: challenger 0.9 of 100 clients"}}
    check_promotable(lab.layout, lab.made("two")[0].key, passed.key)
    assert promote_step(lab.layout, lab.made("two")[0].key, passed.key, "tried", live=live).moved
    evidence = find_champion(lab.layout, "tried").by.evidence
    assert (evidence["canary"], evidence["key"]) == (live["canary"], passed.key)
    console = Console(width=400, file=io.StringIO())
    assert show_history(lab.layout, "tried", console, as_json=False) == 0
    assert "; canary: look 1: challenger 0.9 of 100 clients" in console.file.getvalue()
    with pytest.raises(GateError, match="did not evaluate two"):
        check_promotable(lab.layout, lab.made("two")[0].key, failed.key)
    assert "nothing here is called 'fuor'" in lab("promote", "fuor", "--gate", "exam", "--name", "chat", code=3)


def test_a_later_recipe_reads_the_champion_and_its_key_follows(lab):
    plans = [plan_recipe("uses.yaml", lab.layout)]
    assert plans[0].steps[0].inputs[0].digest == find_champion(lab.layout, "chat").digest
    lab("rollback", "chat", "--to", "2")
    plans.append(plan_recipe("uses.yaml", lab.layout))
    assert plans[1].steps[0].inputs[0].digest == find_champion(lab.layout, "chat").digest
    lab("rollback", "chat", "--to", "1")
    plans.append(plan_recipe("uses.yaml", lab.layout))
    assert plans[0].steps[0].key == plans[2].steps[0].key != plans[1].steps[0].key


def test_lineage_follows_a_champion_through_the_registry(lab):
    now = find_champion(lab.layout, "chat")
    record = json.loads(lab("lineage", "mlflow:chat@champion", "--json"))
    assert record["what"] == "version 1 of chat"
    assert [(node["step"], node["key"]) for node in record["up"]] == [("two", now.key)]
    lab("run", "uses.yaml", "--executor", "inprocess")
    (read,) = next(m for m in lab.made("exam") if m.recipe == "uses").inputs
    assert (read.source, read.step, read.key, read.output) == ("mlflow:chat@champion", "two", now.key, "model")
    used = json.loads(lab("lineage", "uses.exam", "--json"))
    assert [node["step"] for node in used["up"]] == ["exam", "two"]
    down = json.loads(lab("lineage", "mlflow:chat@champion", "--json"))["down"]
    assert {(node["recipe"], node["step"]) for node in down} == {("small", "two"), ("small", "exam"), ("uses", "exam")}


def test_what_was_compared_with_a_champion_that_is_gone_proves_nothing_now(lab):
    against = ("stages.exam.gate.against=champion", "stages.exam.gate.min_delta=0.0", "stages.two.seed=7")
    plan = plan_recipe("small.yaml", lab.layout, overrides=against)  # with version 1
    lab("rollback", "chat", "--to", "2")
    from flows.champions.promotion import promote_after
    from flows.runs.launch import run_plan

    outcome = run_plan(plan, lab.layout, executor="inprocess", prefect=False)
    verdict = promote_after(plan, outcome.states, lab.layout)
    assert not verdict.moved
    assert "exam compared with an earlier champion of chat (version 1); it is now version 2" in verdict.text
    again = lab.run(*against)
    assert "champion of chat: version 2 → version 3" in again


def test_a_damaged_model_or_gate_is_not_promoted(lab):
    passed, two = lab.made("exam")[0], lab.made("two")[0]
    file = Store(lab.layout).folder(passed) / "outputs/report/results.json"
    before = file.read_bytes()
    file.write_bytes(before.replace(b"0.0", b"0.9"))
    assert "exam" in lab("promote", two.key, "--gate", passed.key, "--name", "third", code=3)
    file.write_bytes(before)
    assert find_champion(lab.layout, "third") is None


def test_unknown_names_are_reported(lab, capsys, monkeypatch):
    assert "`caht` has no champion; did you mean `chat`?" in lab("champions", "caht", code=3)
    assert "caht has no champion" in lab("rollback", "caht", code=3)
    monkeypatch.setattr("sys.argv", ["posttrain", "promote", "two"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 3  # --gate and --name are no options to leave out


@pytest.mark.filterwarnings("ignore:Use .content:DeprecationWarning")  # huggingface_hub calls httpx so
def test_a_pushed_champion_takes_its_evaluation_and_approvals_along(lab, monkeypatch, tmp_path):
    champion = find_champion(lab.layout, "chat")
    evidence = collect_evidence(lab.layout, champion.key)
    (exam, *_) = find_promoting_evaluations(evidence)
    append_decision(lab.layout, exam, 0, "approve", name="grace", reason="read ten answers", step="exam")
    with serve_hub(monkeypatch) as hub:
        push_to_hub(lab.layout, "mlflow:chat@champion", "lab/chat", public=False, max_shard_size="5GB")
    sent, card = json.loads(hub.files["posttrain.json"]), hub.files["README.md"].decode()
    assert (sent["model"]["key"], sent["champion"][0]["of"]) == (champion.key, "chat")
    evaluation = next(each for each in sent["evaluations"] if each["key"] == exam)
    assert {row["metric"] for row in evaluation["scores"]} == {"accuracy"}
    assert evaluation["gates"][0]["passed"] is True
    assert "approved by grace" in evaluation["decisions"][-1]
    assert "approved by grace" in card
    assert "promote as version" in card
    keys = {name: load_pem_public_key(pem.encode()) for name, pem in sent["public_keys"].items()}
    assert {entry["action"] for entry in sent["audit"]} >= {"promote", "approve"}
    assert all(find_signature_problem(entry, keys) is None for entry in sent["audit"])

    printed = lab("push", "mlflow:chat@champion", "--remote", str(tmp_path / "models"))
    folder = tmp_path / "models/posttrain"
    sent_lines = [line for line in printed.splitlines() if line.startswith("sent ")]
    assert len(sent_lines) == len(set(sent_lines)) == len(list((folder / "artifacts").iterdir()))
    assert f"{len(sent_lines)} artifacts sent, 0 existed already" in printed
    assert json.loads((folder / f"evidence/{champion.key}.json").read_text())["evaluations"]
    assert any(name.name == f"evaluate-{exam[:16]}" for name in (folder / "artifacts").iterdir())
    look_from_elsewhere(lab, monkeypatch, tmp_path, champion, exam)


def look_from_elsewhere(lab, monkeypatch, tmp_path, champion, exam):
    """Another checkout that pulls the champion shows who approved it, and trusts the entry with its key only."""
    other, words = Layout(tmp_path / "other"), ("--remote", str(tmp_path / "models"))
    other.root.mkdir()
    monkeypatch.setenv("POSTTRAIN_ROOT", str(other.root))
    assert "did you mean `chat`?" in lab("pull", "mlflow:chta@champion", *words, code=3)
    fetched = lab("pull", "mlflow:chat@champion", *words)
    assert f"({champion.key[:16]})" in fetched
    assert f"({exam[:16]})" in fetched
    shown = " ".join(lab("lineage", exam).split())
    assert "approved by grace at 20" in shown
    assert "read ten answers (log of another checkout, not proven: its entry is signed by a key that is not" in shown
    assert f"promote: version {champion.version} of chat at 20" in " ".join(lab("lineage", champion.key).split())
    lab("pull", exam, "--trust", *words)
    assert "read ten answers (log of another checkout, signed by a trusted key)" in " ".join(
        lab("lineage", exam).split()
    )
    (claim,) = [c for c in json.loads(lab("lineage", exam, "--json"))["up"][0]["elsewhere"] if c["action"] == "approve"]
    assert (claim["who"], "problem" in claim) == (read_account(), False)
    file = other.state / "evidence" / f"{champion.key}.json"
    file.write_text(file.read_text().replace("read ten answers", "read all answers"))
    assert "read all answers (log of another checkout, not proven: its entry was altered)" in " ".join(
        lab("lineage", exam).split()
    )
    assert read_decisions(other, exam) == []  # it decides nothing here
    monkeypatch.setenv("POSTTRAIN_ROOT", str(lab.layout.root))
    assert "another checkout" not in lab("lineage", exam)
