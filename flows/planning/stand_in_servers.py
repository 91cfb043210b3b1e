"""Servers of a recipe replaced by a local stand-in: `--tiny --stand-ins` sends no request to them.

While a run with stand-ins goes on, `flows.runs.stand_in_server` answers at the address that a variable of the
environment holds. Its answers have an identity of their own, so that they are never taken for those of a server.
"""

from collections.abc import Iterator
from typing import Any

from schemas.base import JsonObject
from schemas.endpoint import find_endpoints
from schemas.errors import PlanError
from schemas.recipe.load import Recipe
from schemas.steps.step_info import StepInfo

STAND_IN_VARIABLE = "POSTTRAIN_STAND_IN_URL"
STAND_IN_ADDRESS = f"${{env:{STAND_IN_VARIABLE}}}"
"""Address of the stand-in in recipes."""
NAME, VERSION = "stand-in", "1"
LOCAL: JsonObject = {
    "base_url": STAND_IN_ADDRESS,
    "api_key": None,
    "name": NAME,
    "version": VERSION,
    "requests_per_minute": None,
    "tokens_per_minute": None,
}
"""Keys of an endpoint that answers from the stand-in."""
REWARD_SERVER = "servers.http"


def replace_servers(recipe: Recipe) -> JsonObject:
    """Return what is put on top of `endpoints`: those that the stages name answer from the stand-in.

    Raise PlanError for an endpoint that is written inside of a stage.
    """
    for info in recipe.steps.values():
        names = {endpoint["name"] for endpoint in find_endpoints(info.dump())}
        if own := names - {endpoint.name or word for word, endpoint in recipe.head.endpoints.items()}:
            raise PlanError(
                f"--stand-ins: {info.name} has an endpoint of its own ({', '.join(sorted(own)) or 'without a name'}); "
                "write it under `endpoints:` and its name here"
            )
    return {word: dict(LOCAL) for word in recipe.head.endpoints}


def replace_written_servers(value: Any) -> Any:
    """Return keys of stages in which endpoints that are written out answer from the stand-in."""
    if isinstance(value, dict):
        made = {key: replace_written_servers(item) for key, item in value.items()}
        return made | LOCAL if "base_url" in made else made
    return [replace_written_servers(item) for item in value] if isinstance(value, list) else value


def replace_reward_servers(info: StepInfo) -> Iterator[tuple[str, Any]]:
    """Yield path and address of each reward of a stage that a server computes; its headers are sent nowhere."""
    for slot in info.slots:
        if slot.use.use == REWARD_SERVER:
            yield f"{slot.path}.url", f"{STAND_IN_ADDRESS}/score"
            yield f"{slot.path}.headers", {}


def asks_a_teacher(info: StepInfo) -> bool:
    """Return whether a server writes the completions of a step."""
    return bool(find_endpoints(info.dump().get("teacher")))
