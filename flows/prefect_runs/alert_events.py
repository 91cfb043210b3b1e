"""Events on Prefect's server about what an operator should know, on which automations act."""

import asyncio

from prefect.events.clients import get_events_client
from prefect.events.schemas.events import Event, RelatedResource, Resource

from schemas.notify import Occasion

PREFIX = "posttrain.alert."
EMIT_LIMIT = 10.0
"""Seconds in which the server must take an event."""


def name_event(occasion: Occasion) -> str:
    """Return the name of the event of an occasion."""
    return PREFIX + occasion.replace("_", "-")


def emit_alert(recipe: str, run: str, occasion: Occasion, text: str) -> str:
    """Send an event about a run to the server; return why that failed, empty if it did not."""
    resource = {"prefect.resource.id": f"posttrain.recipe.{recipe}", "prefect.resource.name": recipe}
    related = {"prefect.resource.id": f"posttrain.run.{run}", "prefect.resource.role": "run"}
    event = Event(
        event=name_event(occasion),
        resource=Resource(resource),
        related=[RelatedResource(related)],
        payload={"text": f"{recipe}, run {run}: {text}"},
    )
    try:
        asyncio.run(asyncio.wait_for(_emit(event), EMIT_LIMIT))
    except Exception as error:  # of Prefect, of the network: the run goes on
        return f"event {event.event}: {type(error).__name__}"
    return ""


async def _emit(event: Event) -> None:
    async with get_events_client(reconnection_attempts=0, checkpoint_every=1) as client:
        await client.emit(event)
