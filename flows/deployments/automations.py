"""Automations of Prefect that `posttrain up` sets up: one for each occasion on which an operator is needed."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import DoNothing, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from flows.deployments.registry_watch import EVENT
from flows.prefect_runs.alert_events import name_event
from flows.servers.services import NOTIFY_VARIABLE
from schemas.errors import PlanError


@dataclass(frozen=True)
class Occurrence:
    """What an automation waits for."""

    event: str
    description: str


AUTOMATIONS: Mapping[str, Occurrence] = {
    "posttrain: a gate failed": Occurrence(
        name_event("failed_gate"), "A gate of a run failed, also one that only warns."
    ),
    "posttrain: a gate waits for approval": Occurrence(
        name_event("waiting_approval"), "A person must approve or reject."
    ),
    "posttrain: a promotion was refused": Occurrence(name_event("refused_promotion"), "The champion did not change."),
    "posttrain: the registry was changed by others": Occurrence(
        EVENT, "An alias was moved, a tag edited or a version registered outside posttrain."
    ),
}
"""Automations by their names on the server; one that exists is left as the operator made it."""


class AutomationSetup:
    """Creates the automations once; `block` is the notification block that they use, `slack-webhook/NAME`."""

    def __init__(self, say: Callable[[str], None], block: str | None = None):
        self.say, self.is_done = say, False
        self.block = os.environ.get(NOTIFY_VARIABLE) if block is None else block

    def look(self, client: SyncPrefectClient) -> None:
        """Create what is missing, and use the block where nothing is done yet. Raise PlanError if there is no block."""
        if self.is_done:
            return
        problem = None
        try:
            action = self._make_action(client)
        except PlanError as error:
            action, problem = DoNothing(), error
        for name, occurrence in AUTOMATIONS.items():
            wanted = AutomationCore(
                name=name,
                description=occurrence.description,
                trigger=EventTrigger(expect={occurrence.event}, posture=Posture.Reactive, threshold=1),
                actions=[action],
            )
            there = client.read_automations_by_name(name)
            if not there:
                client.create_automation(wanted)
                self.say(f"automation `{name}`: {action.type}")
            elif self.block and not problem and [each.type for each in there[0].actions] == ["do-nothing"]:
                client.update_automation(there[0].id, wanted)
                self.say(f"automation `{name}`: {action.type}")
        if problem is not None:
            raise problem
        self.is_done = True

    def _make_action(self, client: SyncPrefectClient) -> DoNothing | SendNotification:
        if not self.block:
            return DoNothing()
        kind, _, name = self.block.partition("/")
        try:
            block = client.read_block_document_by_name(name, kind)
        except ObjectNotFound as error:
            raise PlanError(
                f"--notify {self.block}: Prefect's server has no such block yet; create it in its UI under Blocks"
            ) from error
        return SendNotification(block_document_id=block.id, subject="posttrain", body="{{ event.payload['text'] }}")
