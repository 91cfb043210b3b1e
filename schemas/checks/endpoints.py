"""Rules for endpoints in a stage: rl does not sample from a server, and a limit in money needs a price."""

from collections.abc import Iterator

from schemas.endpoint import Capped, find_endpoints
from schemas.errors import Problem
from schemas.stages.rl import Rl
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo
from schemas.use import EngineUse


def check_endpoints(info: StepInfo) -> Iterator[Problem]:
    """Yield the problems with endpoints in a step."""
    served = [slot for slot in info.slots if isinstance(slot.use, EngineUse) and find_endpoints(slot.values)]
    for slot in served:
        yield from _check_engine(info, slot)
    if isinstance(info.stage, Capped) and info.stage.max_cost is not None:
        priced = any(endpoint["price"] for endpoint in find_endpoints(info.dump()))
        if not priced:
            message = "`max_cost` has no effect, because no endpoint of this stage has a price"
            yield info.problem("max_cost", message, "set the `price` of the endpoint, or limit `max_tokens_total`")


def _check_engine(info: StepInfo, slot: Slot) -> Iterator[Problem]:
    if isinstance(info.stage, Rl) and slot.path == "engine":
        message = f"`{slot.use.use}` samples from a server, whose weights are not the trained ones"
        yield info.problem(
            slot.path, message, "write `engine: vllm` or `engine: torch`; an rl stage may use endpoints as judges"
        )
    if getattr(info.stage.resources, "rollout", None) is not None and slot.path == "engine":
        message = f"`{slot.use.use}` samples on a server, so workers of the role `rollout` would be idle"
        yield info.problem(
            "resources.rollout", message, "remove them, and limit simultaneous requests with `max_concurrency`"
        )
