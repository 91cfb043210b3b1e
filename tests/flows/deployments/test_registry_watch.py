"""Changes of the registry that posttrain did not make are reported once, to those who asked for it."""

import json

import pytest

from flows.deployments import registry_watch
from flows.deployments.registry_watch import RegistryWatch
from lineage.audit.log import read_entries
from schemas.notify import Notify
from tests.security.test_registry_attacks import alias_by_hand, lab, template

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
__all__ = ["lab", "template"]


class Watching:
    """A watch with a clock that goes on by a minute per look."""

    def __init__(self, layout, monkeypatch):
        self.layout, self.events, self.sent, self.minute = layout, [], [], 0
        monkeypatch.setattr(registry_watch, "send_message", lambda to, text: self.sent.append((to, text)) or "")
        self.start()

    def start(self):
        self.watch = RegistryWatch(self.layout, lambda name, lines: self.events.append((name, lines)), print)

    def look(self, times=2):
        every = Notify(to="${env:HOOK}")
        ends = Notify(to="${env:OTHER}", on=["end"])
        for _ in range(times):
            self.minute += 1
            self.watch.look({"chat": [every, ends], "other": [every]}, lambda: 60.0 * self.minute)
        return [line for _, lines in self.events for line in lines]


def test_a_moved_alias_and_a_version_of_others_are_reported_once(lab, monkeypatch):
    watching = Watching(lab.layout, monkeypatch)
    assert watching.look() == []
    alias_by_hand(lab)
    assert watching.look(1) == []  # a promotion that is going on looks like this for a moment
    (moved,) = watching.look(1)
    assert "mlflow:chat@champion" in moved
    assert [to for to, _ in watching.sent] == ["${env:HOOK}"]
    *_, entry = read_entries(lab.layout)
    assert (entry["action"], entry["facts"]) == ("registry changed outside", {"model": "chat", "changes": [moved]})

    watching.start()  # `up` is restarted
    assert watching.look(3) == [moved]
    number = lab.mlflow.create_model_version("chat", "s3://elsewhere/model").version
    _, foreign = watching.look()
    assert f"mlflow:chat@{number} was registered outside posttrain" in foreign
    lab.alias(3)
    watching.look()
    # The moved alias was set back: moved again, it would be reported again.
    assert json.loads(watching.watch.file.read_text()) == [foreign]
    alias_by_hand(lab)
    assert watching.look() == [moved, foreign, moved]
