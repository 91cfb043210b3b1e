"""Solutions with labels of steps as token ids, and the loss of a process reward model on them.

Shapes: S labelled steps, T tokens of solutions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedTokenizerBase

from learning.auxiliary_networks.network import Valued
from learning.batch.batch_layout import single_turn
from learning.data.rows import Row, count_rows, fits_in_memory, read_metadata, read_rows, scan_rows
from learning.data.steps import encode_steps
from learning.data.stored_rows import iterate_rows, store_rows
from learning.samples.engine_protocol import Generation
from schemas.errors import StepError

IDS = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", IDS),
        ("completion", IDS),
        ("ends", IDS),
        ("labels", pa.list_(pa.float64())),
        ("steps", pa.int32()),
        ("separated", pa.bool_()),
        ("size", pa.int32()),
    ]
)


@dataclass(frozen=True)
class LabelledSteps:
    """A solution as token ids; `ends` are the places among them where its first steps end, and `labels` theirs."""

    id: str
    prompt: list[int]
    completion: list[int]
    ends: list[int]
    labels: list[float]
    steps: int
    """Steps of the whole solution, of which those beyond the limit of tokens are cut off."""
    separated: bool
    """Whether no step has the separator inside."""

    @property
    def size(self) -> int:
        """Tokens of prompt and steps."""
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class EncodedSolutions:
    """Solutions that fit, and how many rows have no step within the limit."""

    solutions: Sequence[LabelledSteps]
    too_long: int


def read_solutions(
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    max_length: int,
    separator: str,
    folder: Path,
    prompt_label: str | None = None,
) -> EncodedSolutions:
    """Return the solutions of an artifact; ids that do not fit into memory are kept in `folder`.

    `prompt_label`: the key of the metadata with a label of the prompt.
    """

    def encode(row: Row) -> LabelledSteps | None:
        made = encode_solution(tokenizer, row, max_length, separator)
        return made if made is None or prompt_label is None else label_prompt(made, row, prompt_label)

    if fits_in_memory(data):
        rows = read_rows(data, "step_labels")
        solutions = [made for row in rows if (made := encode(row)) is not None]
        return EncodedSolutions(solutions, len(rows) - len(solutions))

    def encode_all(row: Row) -> list[Row]:
        made = encode(row)
        return [] if made is None else [asdict(made) | {"size": made.size}]

    def make(row: Row) -> LabelledSteps:
        del row["size"]
        return LabelledSteps(**row)

    def source(start: int) -> Iterator[Row]:
        return iterate_rows(scan_rows(data, "step_labels", start=start))

    count = count_rows(data, "step_labels")
    stored = store_rows(folder, SCHEMA, count, source, encode_all, make)
    return EncodedSolutions(stored, count - len(stored))


def encode_solution(
    tokenizer: PreTrainedTokenizerBase, row: Row, max_length: int, separator: str
) -> LabelledSteps | None:
    """Return a row as token ids, cut off at `max_length`; None if not one step ends before it."""
    texts = [step["content"] for step in row["steps"]]
    encoded = encode_steps(tokenizer, row["prompt"], texts, separator, row)
    room = max(0, max_length - len(encoded.prompt))
    ends = [end for end in encoded.ends if end < room]
    if not ends:
        return None
    separated = not any(separator in text for text in texts)
    completion, labels = encoded.completion[:room], list(row["labels"][: len(ends)])
    return LabelledSteps(row["id"], encoded.prompt, completion, ends, labels, len(texts), separated)


def label_prompt(solution: LabelledSteps, row: Row, key: str) -> LabelledSteps:
    """Return the solution with the prompt as its first step: the last token of the prompt is scored, too.

    Raise StepError for a row without a label from 0 to 1 in its metadata, and for a prompt of one token.
    """
    label = read_metadata(row).get(key)
    if isinstance(label, bool) or not isinstance(label, int | float) or not 0 <= label <= 1:
        raise StepError(f"prompt_label: row {row.get('id')} has no `{key}` from 0 to 1 in its metadata")
    if len(solution.prompt) < 2:
        raise StepError(f"prompt_label: the prompt of row {row.get('id')} is one token, before which nothing stands")
    return replace(
        solution,
        prompt=solution.prompt[:-1],
        completion=[solution.prompt[-1], *solution.completion],
        ends=[0, *(end + 1 for end in solution.ends)],
        labels=[float(label), *solution.labels],
        steps=solution.steps + 1,
    )


def compute_step_logits(network: Valued, solutions: Sequence[LabelledSteps]) -> Tensor:
    """Return the logits (S,) of the steps of some solutions, in their order."""
    answered = [[Generation(one.completion, [0.0] * len(one.completion), "stop")] for one in solutions]
    batch = single_turn([one.prompt for one in solutions], answered)
    value_T = network(batch).values_XH[:, 0]
    return value_T[find_step_ends(solutions).to(value_T.device)]


def find_step_ends(solutions: Sequence[LabelledSteps]) -> Tensor:
    """Return the places (S,) of the ends of all steps among the tokens of all solutions."""
    places, start = [], 0
    for one in solutions:
        places += [start + end for end in one.ends]
        start += len(one.completion)
    return torch.tensor(places, dtype=torch.long)


def select_labels(solutions: Sequence[LabelledSteps], *, last_only: bool) -> tuple[Tensor, Tensor]:
    """Return the labels (S,) of steps, and which of them are learned: all, or the last one of whole solutions."""
    labels = [label for one in solutions for label in one.labels]
    learned = [not last_only or place == one.steps - 1 for one in solutions for place in range(len(one.labels))]
    return torch.tensor(labels), torch.tensor(learned)


def compute_step_losses(logit_S: Tensor, label_S: Tensor) -> Tensor:
    """Return −y log σ(v) − (1 − y) log(1 − σ(v)) of each step (S,) (Lightman et al. 2023).

    It is TRL's cross-entropy of two classes whose logits differ by v.
    """
    return binary_cross_entropy_with_logits(logit_S, label_S.to(logit_S), reduction="none")
