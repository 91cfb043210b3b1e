"""What evaluations say about problems that are among the rows which their models were trained on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from learning.data.rows import Row
from schemas.evaluation_slots import TRAINED_ON
from tasks.context import Context

if TYPE_CHECKING:
    from learning.curation.training_overlap import Overlap


def describe_trained_problems(problems: Sequence[Row], context: Context) -> list[str]:
    """Return a sentence for each model that was trained on rows which ask some of the problems.

    The rows are the inputs `trained_on.<model>.<number>`, those of the models before it included.
    """
    ports = [port for port in context.inputs if port.startswith(f"{TRAINED_ON}.")]
    if not ports:
        return []
    from learning.curation.training_overlap import find_overlap  # DuckDB takes 0.2 s, and few evaluations need it

    overlaps: dict[str, list[Overlap]] = {}
    known: dict[str, Overlap] = {}
    for port in ports:
        folder = context.inputs[port]
        place = str(folder.resolve())
        if place not in known:
            known[place] = find_overlap(folder, problems, context.folder, context.num_threads)
        label = port.removeprefix(f"{TRAINED_ON}.").rpartition(".")[0]
        overlaps.setdefault(label, []).append(known[place])
    return [text for label, of_model in overlaps.items() for text in _describe(label, of_model, len(problems))]


def _describe(label: str, of_model: Sequence["Overlap"], size: int) -> list[str]:
    """Return the sentence for one model, whose training read several tables; none if no problem is among them."""
    asked = frozenset[str]().union(*(overlap.problems for overlap in of_model))
    if not asked:
        return []
    rows = sum(overlap.rows for overlap in of_model)
    row, problem = next(overlap.first for overlap in of_model if overlap.rows)
    return [
        f"{label}: {len(asked)} of {size} problems are among the rows that it was trained on ({rows} "
        f"row{'' if rows == 1 else 's'}; first: problem {problem} in row {row}), so its results are too good; leave "
        "these rows out: `contaminated_rows: drop` in the stages that train"
    ]
