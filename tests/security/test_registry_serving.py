"""`serve --follow` while the registry, the log and the files are attacked: it keeps what it serves, and says so."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from flows.serving import current
from flows.serving.current import Current, Limits, Served, load
from flows.serving.models import Chosen, choose, files_of
from learning.models.policy import load_policy
from lineage.audit import log as audit_log
from lineage.registry.champions import move_champion, read_standing
from lineage.registry.rollback import roll_back
from schemas.errors import StepError
from tests.security.test_registry_attacks import (
    IN_MLFLOW,
    IN_THE_LOG,
    IN_THE_STORE,
    artifact_gone,
    lab,
    registry_lost,
    template,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
__all__ = ["lab", "template"]
LIMITS = Limits(max_slots=1, max_length=None)


class Worker:
    """Stands in for an engine."""

    max_length = 8

    def close(self):
        """Nothing to end."""


class Looks:
    """Lets a server look at the champion so often, and then ends it; notes what it said and loaded."""

    def __init__(self, lab, monkeypatch):
        self.layout, self.said, self.loaded = lab.layout, [], []
        monkeypatch.setattr(current, "load", self.load)
        self.current = Current(Served(choose("mlflow:chat@champion", lab.layout), Worker()))

    def load(self, chosen, limits, device, dtype):
        self.loaded.append((chosen.folder / "model.safetensors").read_bytes())
        return Served(chosen, Worker())

    def look(self, times=2):
        ending = iter([*[False] * times, True])
        self.current.ending = type("Ending", (), {"wait": lambda _, seconds: next(ending)})()
        self.current._watch(self.layout, LIMITS, "cpu", "float32", self.said.append)
        return self.current.served.chosen.digest


@pytest.fixture
def server(lab, monkeypatch):
    return Looks(lab, monkeypatch)


@pytest.mark.parametrize("attack", [a for a in IN_MLFLOW if a is not registry_lost], ids=lambda a: a.__name__)
def test_a_move_by_hand_is_not_followed_and_reported_once(lab, server, attack):
    attack(lab)
    assert server.look(3) == lab.digest("third")
    assert server.loaded == []
    (message,) = server.said
    assert message.startswith("ALARM mlflow:chat@")
    roll_back(lab.layout, "chat")
    assert server.look() == lab.digest("second")
    assert server.loaded == [b"second"]


@pytest.mark.parametrize("attack", IN_THE_LOG, ids=lambda a: a.__name__)
def test_with_a_log_that_does_not_hold_the_server_keeps_its_model(lab, server, attack):
    attack(lab)
    assert (server.look(3), server.loaded) == (lab.digest("third"), [])
    (message,) = server.said
    assert message.startswith("still serving mlflow:chat@champion, version 3")
    assert "the audit log does not hold" in message


@pytest.mark.parametrize("attack", [a for a in IN_THE_STORE if a is not artifact_gone], ids=lambda a: a.__name__)
def test_a_champion_whose_bytes_are_others_is_not_changed_to(lab, server, attack):
    roll_back(lab.layout, "chat")
    assert server.look() == lab.digest("second")
    attack(lab)
    now = read_standing(lab.layout, "chat").champion
    audit_log.append(  # the log's own word, while the files are swapped
        lab.layout,
        "rollback",
        model="chat",
        number=5,
        version=3,
        before=2,
        key=lab.made["third"].key,
        digest=lab.digest("third"),
        output="policy",
        evidence={},
        after=now.by.entry["hash"],
        log=None,
    )
    assert server.look(3) == lab.digest("second")
    assert server.loaded == [b"second"]
    refusals = ("is not what was published", "which was promoted", "is not in this checkout")
    assert any(refusal in message for message in server.said for refusal in refusals)


def test_files_that_change_between_verifying_and_loading_are_not_served(lab, monkeypatch):
    chosen = choose("mlflow:chat@champion", lab.layout)
    assert chosen.files == files_of(chosen.folder)

    def swapped(folder, **options):
        lab.weights("third").write_bytes(b"evil!")
        return SimpleNamespace(model=torch.nn.Linear(1, 1))

    monkeypatch.setattr(current, "load_policy", swapped)
    with pytest.raises(StepError, match="its files changed after they were verified"):
        load(chosen, LIMITS, "cpu", "float32")


def test_weights_that_are_served_do_not_change_with_their_file(tiny_policy_folder, tmp_path):
    shutil.copytree(tiny_policy_folder, tmp_path / "model")
    served = load(Chosen("mine", tmp_path / "model", "", "mine"), LIMITS, "cpu", "float32")
    before = load_policy(tiny_policy_folder, device="cpu", dtype="float32").model.state_dict()
    with (tmp_path / "model/model.safetensors").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(size // 4)
        file.write(bytes(size - size // 4))
    after = served.worker.policy.model.state_dict()
    served.worker.close()
    assert [name for name, weight in before.items() if not torch.equal(weight, after[name])] == []


def test_a_promotion_is_followed_and_the_alias_alone_is_not(lab, server):
    lab.alias(1)
    assert server.look() == lab.digest("third")
    lab.alias(3)
    move_champion(
        lab.layout, "chat", lab.made["evil"].key, evidence={}, expected=read_standing(lab.layout, "chat").champion
    )
    assert server.look() == lab.digest("evil")
    assert server.loaded == [b"evil"]
