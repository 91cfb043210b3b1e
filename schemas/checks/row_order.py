"""A stage that trains on data with an order must follow it."""

from collections.abc import Iterator, Mapping

from schemas.errors import Problem
from schemas.source.tree import join_path, make_problem
from schemas.stages.curate import Curate
from schemas.stages.data import Data
from schemas.stages.preference import Preference
from schemas.stages.sft import Sft
from schemas.steps.step_info import Port, StepInfo


def check_row_order(info: StepInfo, steps: Mapping[str, StepInfo]) -> Iterator[Problem]:
    """Yield the ports of a step that read rows of a curriculum and do not keep their order."""
    if isinstance(info.stage, Curate):
        return
    for port in info.ports:
        if not _is_ordered(port, steps) or port.path == "validation":
            continue
        if isinstance(info.stage, Sft | Preference):
            if info.stage.shuffle:
                message = "the data are a curriculum (`during` of its sources), and training would shuffle them"
                yield info.problem("shuffle", message, "set `shuffle: false`, or remove `during`")
        else:
            message = "the data are a curriculum (`during` of its sources), whose order this kind does not keep"
            yield make_problem(port.mark, join_path(info.path, port.path), message, "remove `during`")


def _is_ordered(port: Port, steps: Mapping[str, StepInfo]) -> bool:
    """Return whether the rows of a port have the order of a curriculum, also after a curation."""
    for name in port.steps:
        stage = steps[name].stage
        if isinstance(stage, Data) and any(source.during for source in stage.sources):
            return True
        if isinstance(stage, Curate) and any(_is_ordered(p, steps) for p in steps[name].ports if p.path == "data"):
            return True
    return False
