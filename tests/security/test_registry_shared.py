"""Two checkouts on one registry: what one promoted the other knows by its signature, where it trusts the key."""

import json
import shutil

import pytest

from flows.serving.models import choose
from lineage.audit import log as audit_log
from lineage.audit.moves import read_moves
from lineage.keys import VARIABLE
from lineage.registry.champions import move_champion, read_standing
from lineage.registry.client import open_client
from lineage.registry.rollback import restore_registry, roll_back
from lineage.verification.verify import verify
from schemas.errors import PlanError
from tests.lineage.conftest import Maker
from tests.registries import empty_registry

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies


@pytest.fixture
def checkouts(tmp_path, monkeypatch):
    """Two checkouts with the same three models and keys of their own."""
    (tmp_path / "shared.db").write_bytes(empty_registry())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'shared.db'}")
    for name in ("MLFLOW_REGISTRY_URI", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    made = []
    for place in ("here", "there"):
        maker = Maker(tmp_path / place)
        for name in ("one", "two", "three"):
            maker.make(name, "sft", {"policy": {"model.safetensors": name.encode()}}, {"policy": "policy"})
        audit_log.append(maker.layout, "counted")
        made.append(maker)
    return made


def trust(here, other):
    folder = here.layout.state / "keys/trusted"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(other.layout.state / "keys/signing.pub", folder / f"{other.layout.root.name}.pub")


def promote(maker, name, text="0.9"):
    now = read_standing(maker.layout, "chat").champion
    return move_champion(maker.layout, "chat", maker.made[name].key, evidence={"why": text}, expected=now)


def digest(maker, name):
    return maker.made[name].outputs["policy"].digest


def test_a_signed_move_of_a_trusted_checkout_is_known_kept_and_built_upon(checkouts):
    here, there = checkouts
    trust(here, there)
    trust(there, here)
    promote(there, "one")
    assert choose("mlflow:chat@champion", here.layout).digest == digest(here, "one")
    assert read_standing(here.layout, "chat").alarms == []
    promote(here, "two")
    promote(there, "three")
    for maker in checkouts:
        standing = read_standing(maker.layout, "chat")
        assert (standing.alarms, standing.champion.digest) == ([], digest(maker, "three"))
        assert [(m.number, m.digest) for m in standing.moves] == [
            (number, digest(maker, name)) for number, name in enumerate(("one", "two", "three"), 1)
        ]
        assert verify(maker.layout).problems == ()
    assert roll_back(here.layout, "chat")[1].digest == digest(here, "two")
    # What was seen of the other is in the own log from then on, and is not lost with MLflow's tags.
    assert [m.number for m in read_moves(here.layout)["chat"]] == [1, 2, 3, 4]
    open_client(here.layout).delete_model_version_tag("chat", "3", "posttrain.move.000003")
    assert [m.number for m in read_standing(here.layout, "chat").moves] == [1, 2, 3, 4]
    assert read_standing(here.layout, "chat").alarms == [
        "mlflow:chat@3: tag posttrain.move.000003 of a move that the audit log knows is gone"
    ]


def test_a_checkout_that_trusts_no_other_refuses_and_says_the_way_out(checkouts):
    here, there = checkouts
    promote(there, "one")
    with pytest.raises(PlanError, match="the audit log has none"):
        choose("mlflow:chat@champion", here.layout)
    (alarm, _) = sorted(read_standing(here.layout, "chat").alarms, key=lambda line: "trusted" not in line)
    assert "is signed by a key that is not trusted here" in alarm
    with pytest.raises(PlanError, match="is not what the audit log made it"):
        promote(here, "two")
    trust(here, there)
    assert choose("mlflow:chat@champion", here.layout).digest == digest(here, "one")
    # Trust that was taken back is taken back for what was seen before, too.
    assert promote(here, "two").by.number == 2
    (here.layout.state / "keys/trusted/there.pub").unlink()
    with pytest.raises(PlanError, match="@1 was never champion"):
        choose("mlflow:chat@1", here.layout)


def test_moves_of_another_name_or_history_are_not_taken_over(checkouts):
    here, there = checkouts
    trust(here, there)
    promote(there, "one")
    promote(there, "two")
    mlflow = open_client(here.layout)
    tags = [mlflow.get_model_version("chat", str(n)).tags[f"posttrain.move.{n:06d}"] for n in (1, 2)]
    # Another registered model with the genuine move of this one.
    mlflow.create_registered_model("other")
    mlflow.create_model_version("other", "dvc:///files/x", tags={"posttrain.move.000001": tags[0]})
    mlflow.set_registered_model_alias("other", "champion", "1")
    with pytest.raises(PlanError, match="the audit log has none"):
        choose("mlflow:other@champion", here.layout)
    # A genuine move without the one that it follows.
    mlflow.delete_model_version_tag("chat", "1", "posttrain.move.000001")
    alarms = read_standing(here.layout, "chat").alarms
    assert any("follows a move that is not known here" in alarm for alarm in alarms)
    with pytest.raises(PlanError, match="the audit log has none"):
        choose("mlflow:chat@champion", here.layout)
    # The one whose log has both puts it right.
    assert restore_registry(there.layout, "chat")
    assert choose("mlflow:chat@champion", here.layout).digest == digest(here, "two")


def test_two_moves_at_once_are_both_known_and_the_later_one_counts(checkouts):
    here, there = checkouts
    trust(here, there)
    trust(there, here)
    promote(here, "one")
    rival = json.loads(open_client(here.layout).get_model_version("chat", "1").tags["posttrain.move.000001"])
    promote(here, "two")
    # What the other wrote at the same moment: a second move after the first, a little later.
    version = open_client(there.layout).create_model_version(
        "chat",
        "dvc:///files/x",
        tags={"key": there.made["three"].key, "digest": digest(there, "three"), "output": "policy"},
    )
    entry = audit_log.append(
        there.layout,
        "promote",
        model="chat",
        number=3,
        version=int(version.version),
        before=1,
        key=there.made["three"].key,
        digest=digest(there, "three"),
        output="policy",
        evidence={},
        after=rival["hash"],
        log=None,
    )
    tag = f"posttrain.move.{3:06d}"
    open_client(there.layout).set_model_version_tag("chat", version.version, tag, audit_log.encode_entry(entry))
    open_client(there.layout).set_registered_model_alias("chat", "champion", version.version)
    standing = read_standing(here.layout, "chat")
    assert standing.champion.digest == digest(here, "three")
    assert [m.number for m in standing.moves] == [1, 2, 3]
