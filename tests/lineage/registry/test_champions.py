import json
import subprocess
import sys
from pathlib import Path

import pytest

from lineage.audit import log as audit_log
from lineage.registry.champions import Moved, find_champion, move_champion, read_standing, read_standings
from lineage.registry.rollback import roll_back
from lineage.sources.resolve import find_source
from schemas.errors import PlanError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
HOUSE = Path(__file__).resolve().parents[3]
GATE = {"gate": "exam", "key": "ab" * 32, "run": "run-1", "recipe": "small", "gates": ["accuracy 0.9"]}
RACE = """
import sys
from pathlib import Path
from lineage.registry.champions import Moved, move_champion
from lineage.layout import Layout
root, key = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
try:
    print(move_champion(Layout(Path(root)), "chat", key, evidence={}, expected=None).key)
except Moved as error:
    print("lost:", error)
"""


@pytest.fixture(autouse=True)
def own_store(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)


def told(layout, name="chat"):
    return [(m.number, m.action, m.before, m.version) for m in read_standing(layout, name).moves]


def test_a_champion_moves_is_found_by_recipes_and_goes_back(small_run):
    """One test for all that needs a fresh store: making one takes seconds."""
    layout, made = small_run.layout, small_run.made
    assert find_champion(layout, "chat") is None
    assert not (layout.state / "mlflow.db").exists()  # asking an empty checkout costs nothing

    first = move_champion(layout, "chat", made["tuned"].key, evidence=GATE, expected=None)
    assert (first.version, first.key, first.by.evidence) == (1, made["tuned"].key, GATE)
    assert first.digest == made["tuned"].outputs["policy"].digest
    assert (first.folder / "model.safetensors").read_bytes() == b"w1"
    assert (
        move_champion(layout, "chat", made["tuned"].key, evidence=GATE, expected=None) == first
    )  # again: nothing happens

    second = move_champion(layout, "chat", made["raw"].key, evidence=GATE, expected=first)
    assert find_champion(layout, "chat") == second
    assert [each.champion for each in read_standings(layout)] == [second]
    source = find_source("mlflow:chat@champion", layout, ())
    assert (source.digest, source.folder) == (second.digest, second.folder)
    assert find_source("mlflow:chat@1", layout, ()).digest == first.digest

    with pytest.raises(Moved, match=r"champion of chat was version 1 and is now version 2, since .* by"):
        move_champion(layout, "chat", made["base"].key, evidence=GATE, expected=first)
    with pytest.raises(PlanError, match=r"lessons .* is not a model"):
        move_champion(layout, "chat", made["lessons"].key, evidence=GATE, expected=second)
    with pytest.raises(PlanError, match="not in this checkout"):
        move_champion(layout, "chat", "0" * 64, evidence=GATE, expected=second)

    third = move_champion(layout, "chat", made["base"].key, evidence=GATE, expected=second)
    for wanted in (2, 1):  # back, and further back: not to and fro
        before, after = roll_back(layout, "chat", why="it swears")
        assert (before.version, after.version) == (wanted + 1, wanted)
    with pytest.raises(PlanError, match="no champion before this one"):
        roll_back(layout, "chat")
    with pytest.raises(PlanError, match="version 9 of chat was never champion; champions before: 2, 3"):
        roll_back(layout, "chat", 9)
    assert roll_back(layout, "chat", 3)[1].key == third.key
    assert told(layout) == [
        (1, "promote", None, 1),
        (2, "promote", 1, 2),
        (3, "promote", 2, 3),
        (4, "rollback", 3, 2),
        (5, "rollback", 2, 1),
        (6, "rollback", 1, 3),
    ]
    assert read_standing(layout, "chat").moves[3].evidence == {"why": "it swears"}
    logged = [e for e in audit_log.read_entries(layout) if e["action"] in ("promote", "rollback")]
    assert [(e["facts"]["number"], e["action"], e["facts"]["version"]) for e in logged] == [
        (n, action, version) for n, action, _, version in told(layout)
    ]

    (layout.artifact("sft", made["raw"].key) / "outputs/policy/model.safetensors").write_bytes(b"w3")
    with pytest.raises(PlanError, match=r"raw .* is not what was published: .*sha256 is"):
        roll_back(layout, "chat", 2)
    assert find_champion(layout, "chat").version == 3


def test_an_alias_set_by_hand_is_an_alarm_and_a_cut_off_move_is_made_whole(small_run):
    from lineage.registry.client import open_client

    layout, made = small_run.layout, small_run.made
    first = move_champion(layout, "chat", made["tuned"].key, evidence=GATE, expected=None)
    second = move_champion(layout, "chat", made["raw"].key, evidence=GATE, expected=first)
    open_client(layout).set_registered_model_alias("chat", "champion", "1")
    assert find_champion(layout, "chat") == second
    assert read_standing(layout, "chat").alarms == [
        f"mlflow:chat@champion stands at version 1; by the audit log version 2 ({second.key[:12]}) is champion"
    ]
    with pytest.raises(PlanError, match="--restore"):
        move_champion(layout, "chat", made["base"].key, evidence=GATE, expected=second)
    # As a kill between the log and the alias leaves it, or one between the alias and its tag.
    for alias in ("1", "2"):
        open_client(layout).set_registered_model_alias("chat", "champion", alias)
        open_client(layout).delete_model_version_tag("chat", "2", "posttrain.move.000002")
        assert read_standing(layout, "chat").is_unfinished
        whole = move_champion(layout, "chat", made["raw"].key, evidence=GATE, expected=first)
        assert (whole.version, whole.by.number, whole.by.evidence) == (second.version, 2, GATE)
        assert read_standing(layout, "chat").alarms == []
        assert int(open_client(layout).get_model_version_by_alias("chat", "champion").version) == 2


def test_of_two_concurrent_promotions_one_wins_and_the_other_is_refused(small_run):
    layout, made = small_run.layout, small_run.made
    keys = [made[name].key for name in ("tuned", "raw", "base")]
    racers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RACE, str(layout.root), key],
            cwd=HOUSE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for key in keys
    ]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 3
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    outputs = [racer.communicate(timeout=240)[0].strip() for racer in racers]
    (winner,) = [line for line in outputs if line in keys]
    assert sum(line.startswith("lost: the champion of chat was none and is now version 1") for line in outputs) == 2
    assert find_champion(layout, "chat").key == winner
    assert told(layout) == [(1, "promote", None, 1)]
    assert json.loads(audit_log.log_file(layout).read_text())["facts"]["key"] == winner
