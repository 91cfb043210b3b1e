"""Which model answers a request, and which one if that fails."""

from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from flows.serving.answers import Chat, Plain, make_response_id
from flows.serving.canary import Canary, Route
from flows.serving.current import Current, Served
from flows.serving.feedback import FALLBACK
from flows.serving.observation import ANSWERED
from flows.serving.refusals import Refused
from schemas.base import JsonObject

CLIENT_NAMES = ("safety_identifier", "user", "prompt_cache_key")
"""Parameters that name the client, by which a canary routes; the first that a request has counts."""
MAX_NAME = 256


@dataclass(frozen=True)
class Attempt:
    """One model that may answer a request."""

    served: Served
    response: str
    """Id of the response."""
    canary: Canary | None = None
    route: Route | None = None
    is_fallback: bool = False

    @property
    def arm(self) -> str | None:
        """Return `champion`, `challenger` or `fallback`; None without a canary."""
        return FALLBACK if self.is_fallback else self.route.arm if self.route else None

    def record(self) -> None:
        """Record that a client is about to receive the response."""
        if self.canary is not None and self.route is not None:
            self.canary.record(self.response, str(self.arm), self.route.client)

    def fail(self, error: Exception) -> None:
        """Record that the model failed to give the response."""
        if self.canary is not None and self.route is not None and not self.is_fallback:
            self.canary.fail(self.response, self.route, error)

    def headers(self) -> dict[str, str]:
        """Return the headers that name the model and, with a canary, its arm."""
        name = self.served.chosen.description.encode("ascii", "replace").decode()
        return {"x-posttrain-model": name} | ({"x-posttrain-arm": self.arm} if self.arm else {})

    def note(self, scope: Scope) -> None:
        """Leave for the log of requests which model answers."""
        chosen = self.served.chosen
        arm = {"arm": self.arm} if self.arm else {}
        scope[ANSWERED] = {"model": self.served.name, "digest": chosen.digest, "response": self.response, **arm}


def list_attempts(current: Current, body: JsonObject, words: Chat | Plain) -> list[Attempt]:
    """Return the models for a request in order: with a canary's challenger, then the champion. Raise Refused."""
    canary, response = current.canary, make_response_id(words)
    if canary is None or not canary.is_open:
        return [Attempt(current.served, response)]
    route = canary.route(_read_client(body) or response)
    if route.arm == "champion":
        return [Attempt(current.served, response, canary, route)]
    fallback = Attempt(current.served, make_response_id(words), canary, route, is_fallback=True)
    return [Attempt(canary.challenger, response, canary, route), fallback]


def _read_client(body: JsonObject) -> str | None:
    """Return the name of the client. Raise Refused for one that is no short text."""
    for parameter in CLIENT_NAMES:
        name: Any = body.get(parameter)
        if name is None:
            continue
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise Refused(f"{parameter}: must be a text of 1 to {MAX_NAME} characters", parameter)
        return name
    return None
