"""`posttrain up` sets up automations once, uses the operator's block for them, and leaves what an operator changed."""

from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.events.actions import CancelFlowRun
from prefect.exceptions import ObjectNotFound

from flows.deployments.automations import AUTOMATIONS, AutomationSetup
from flows.deployments.registry_watch import EVENT
from flows.prefect_runs import alert_events
from flows.prefect_runs.alert_events import emit_alert, name_event
from flows.servers.services import NOTIFY_VARIABLE
from schemas.errors import PlanError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules that Prefect imports


class Server:
    """What the setup asks of Prefect's server."""

    def __init__(self, *blocks):
        self.automations, self.blocks = {}, {block: uuid4() for block in blocks}

    def read_automations_by_name(self, name):
        return [self.automations[name]] if name in self.automations else []

    def create_automation(self, made):
        self.automations[made.name] = SimpleNamespace(id=made.name, **dict(made))

    def update_automation(self, name, made):
        self.automations[name] = SimpleNamespace(id=name, **dict(made))

    def read_block_document_by_name(self, name, kind):
        if f"{kind}/{name}" not in self.blocks:
            raise ObjectNotFound(KeyError(name))
        return SimpleNamespace(id=self.blocks[f"{kind}/{name}"])

    def actions(self):
        return {name: [action.type for action in made.actions] for name, made in self.automations.items()}


@pytest.fixture(autouse=True)
def no_block(monkeypatch):
    monkeypatch.delenv(NOTIFY_VARIABLE, raising=False)


def test_each_occasion_has_an_automation_that_its_event_triggers_and_no_other():
    server, said = Server(), []
    AutomationSetup(said.append).look(server)
    assert len(said) == len(server.automations) == 4
    events = {name: made.trigger.expect for name, made in server.automations.items()}
    occasions = ("failed_gate", "waiting_approval", "refused_promotion")
    assert sorted(map(sorted, events.values())) == sorted([[name_event(each)] for each in occasions] + [[EVENT]])
    assert all(made.trigger.threshold == 1 for made in server.automations.values())
    assert set(map(tuple, server.actions().values())) == {("do-nothing",)}


def test_the_block_of_up_sends_and_what_an_operator_changed_stays(monkeypatch):
    server = Server("slack-webhook/team")
    AutomationSetup(print).look(server)
    first, *rest = AUTOMATIONS
    server.automations[first].actions = [CancelFlowRun()]
    monkeypatch.setenv(NOTIFY_VARIABLE, "slack-webhook/team")
    setup = AutomationSetup(print)
    setup.look(server)
    assert server.actions() == {first: ["cancel-flow-run"]} | {name: ["send-notification"] for name in rest}
    action = server.automations[rest[0]].actions[0]
    assert (action.block_document_id, action.body) == (
        server.blocks["slack-webhook/team"],
        "{{ event.payload['text'] }}",
    )
    server.automations.clear()
    setup.look(server)  # it is done: what an operator removed stays removed while `up` runs
    assert server.automations == {}


def test_a_block_that_is_not_there_yet_is_named_and_looked_for_again():
    server = Server()
    setup = AutomationSetup(print, "slack-webhook/team")
    with pytest.raises(PlanError, match="--notify slack-webhook/team: Prefect's server has no such block yet"):
        setup.look(server)
    assert set(map(tuple, server.actions().values())) == {("do-nothing",)}
    server.blocks["slack-webhook/team"] = uuid4()
    setup.look(server)
    assert set(map(tuple, server.actions().values())) == {("send-notification",)}


def test_an_event_says_what_happened_and_one_that_cannot_be_sent_disturbs_nothing(monkeypatch):
    emitted = []

    class Client:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def emit(self, event):
            emitted.append(event)

    monkeypatch.setattr(alert_events, "get_events_client", lambda **_: Client())
    assert emit_alert("chat", "run-1", "failed_gate", "exam: gate failed: accuracy") == ""
    (event,) = emitted
    assert (event.event, event.resource.id) == ("posttrain.alert.failed-gate", "posttrain.recipe.chat")
    assert event.payload == {"text": "chat, run run-1: exam: gate failed: accuracy"}
    triggered = [name for name, occurrence in AUTOMATIONS.items() if occurrence.event == event.event]
    assert triggered == ["posttrain: a gate failed"]

    def refuse(**_):
        raise OSError("no server")

    monkeypatch.setattr(alert_events, "get_events_client", refuse)
    assert emit_alert("chat", "run-1", "failed_gate", "no") == "event posttrain.alert.failed-gate: OSError"
