"""Rules for endpoints in a stage: no training with a server's weights, no cap in money without prices."""

from collections.abc import Iterator

from schemas.endpoint import Capped, find_endpoints
from schemas.errors import Problem
from schemas.stages.rl import Rl
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo
from schemas.use import EngineUse


def check_endpoints(info: StepInfo) -> Iterator[Problem]:
    """Yield all problems with endpoints in one step."""
    served = [slot for slot in info.slots if isinstance(slot.use, EngineUse) and find_endpoints(slot.values)]
    for slot in served:
        yield from _check_engine(info, slot)
    if isinstance(info.stage, Capped) and info.stage.max_cost is not None:
        priced = any(endpoint["price"] for endpoint in find_endpoints(info.dump()))
        if not priced:
            message = "`max_cost` is about what endpoints cost, and none of this stage has a price"
            yield info.problem("max_cost", message, "give the endpoint its `price`, or cap `max_tokens_total`")


def _check_engine(info: StepInfo, slot: Slot) -> Iterator[Problem]:
    if isinstance(info.stage, Rl) and slot.path == "engine":
        message = f"`{slot.use.use}` samples from a server that keeps its own weights: what is trained would not sample"
        yield info.problem(slot.path, message, "write `engine: vllm` or `engine: torch`; endpoints are for judges here")
    if getattr(info.stage.resources, "rollout", None) is not None and slot.path == "engine":
        message = (
            f"`{slot.use.use}` samples on a server, so that workers of the role `rollout` would have nothing to do"
        )
        yield info.problem(
            "resources.rollout", message, "drop them, and let `max_concurrency` say how much is asked at once"
        )
