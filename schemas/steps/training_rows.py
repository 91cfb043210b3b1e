"""The rows that evaluated models were trained on, as inputs of evaluations, which look for problems among them."""

from collections.abc import Iterator
from functools import reduce
from operator import or_

from schemas.evaluation_slots import TRAINED_ON
from schemas.stages.curate import Curate
from schemas.stages.data import Data
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.stages.merge_search import MergeSearch
from schemas.steps.step_info import Port, StepInfo, replace_parts
from schemas.training import Training

EVALUATIONS = (Evaluate, EvaluateRewards, MergeSearch)
MAX_TABLES = 100
"""Most tables of rows that are compared for one model: those of the last steps before it."""


def add_training_rows(infos: dict[str, StepInfo]) -> dict[str, StepInfo]:
    """Return ordered steps with the rows that their models were trained on as inputs of all evaluations.

    Left out are rows of a curation that decontaminates, those of stages with `contaminated_rows: allow`, and those of
    steps that may be skipped while the evaluation runs.
    """
    tables: list[Port] = []
    above: dict[str, int] = {}  # a bit for each table, so that a union of thousands costs nothing
    numbers: dict[tuple[object, ...], int] = {}
    for name, info in infos.items():
        bits = reduce(or_, (above[step] for port in info.ports for step in port.steps), 0)
        if (port := find_training_port(info, infos)) is not None:
            if port.content not in numbers:
                numbers[port.content] = len(tables)
                tables.append(port)
            bits |= 1 << numbers[port.content]
        above[name] = bits
    return {
        name: _add_ports(info, tables, above, infos) if isinstance(info.stage, EVALUATIONS) else info
        for name, info in infos.items()
    }


def find_training_port(info: StepInfo, infos: dict[str, StepInfo]) -> Port | None:
    """Return the port of the rows that a step trains on, if they may have problems of an evaluation unnoticed."""
    if not isinstance(info.stage, Training) or info.stage.contaminated_rows != "warn":
        return None
    port = next((port for port in info.ports if port.path == info.stage.data_port), None)
    return None if port is None or _is_decontaminated(port, infos) else port


def _is_decontaminated(port: Port, infos: dict[str, StepInfo]) -> bool:
    """Return whether all rows of a port come from curations that decontaminate."""
    if port.source is not None:
        return False
    makers = [infos[step] for step in port.steps if step in infos]
    return bool(makers) and all(_decontaminates(maker, infos) for maker in makers)


def _decontaminates(maker: StepInfo, infos: dict[str, StepInfo]) -> bool:
    if isinstance(maker.stage, Curate) and maker.stage.decontaminate is not None:
        return True
    if not isinstance(maker.stage, Curate | Data):
        return False
    return bool(maker.ports) and all(_is_decontaminated(port, infos) for port in maker.ports)


def _add_ports(info: StepInfo, tables: list[Port], above: dict[str, int], infos: dict[str, StepInfo]) -> StepInfo:
    added = []
    for port in info.ports:
        label = _name_model(port)
        if label is None:
            continue
        bits = reduce(or_, (above.get(step, 0) for step in port.steps), 0)
        own_tables = [tables[number] for number in _list_bits(bits) if _is_there(tables[number], info, infos)]
        for number, table in enumerate(own_tables[-MAX_TABLES:]):
            path = f"{TRAINED_ON}.{label}.{number}"
            added.append(Port(**{**table.__dict__, "path": path, "mark": port.mark}))
    return replace_parts(info, ports=(*info.ports, *added)) if added else info


def _name_model(port: Port) -> str | None:
    """Return what an evaluated model is called in reports; None if the port is no model that is evaluated.

    A partner in a team is called as the recipe names it, such as `policies.searcher`: where it has seen the problems,
    the score of the team is as little one of unseen problems as where the team's own model has.
    """
    head, _, label = port.path.partition(".")
    if head in ("model", "models", "against"):
        return label or head
    return port.path.removesuffix(".model") if head == "policies" else None


def _list_bits(bits: int) -> Iterator[int]:
    number = 0
    while bits:
        if bits & 1:
            yield number
        bits, number = bits >> 1, number + 1


def _is_there(table: Port, evaluation: StepInfo, infos: dict[str, StepInfo]) -> bool:
    """Return whether the steps that make a table have run whenever the evaluation runs."""
    makers = [infos[step] for step in table.steps if step in infos]
    return all(
        set(maker.unless) <= set(evaluation.unless) and set(maker.branch_of) <= set(evaluation.branch_of)
        for maker in makers
    )
