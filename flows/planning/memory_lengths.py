"""Lengths of the rows that the steps of a plan read, as far as rows are known before a run.

Known are rows of files, of steps that have run, and of generators of problems. Of each table, the rows with the most
characters are encoded with tokenizer and template of the model: among them is the longest, but for rare exceptions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from flows.planning.memory_models import KnownModel
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.base import JsonObject
from schemas.chat_settings import read_chat
from schemas.errors import PosttrainError, StepError
from schemas.plan import Input, Plan, Step
from schemas.references import MODEL_TYPES, TABLE_TYPES
from schemas.stages.data import Data
from schemas.use import ProblemsUse, TokenizerUse

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from learning.data.rows import Row

LOOKED_AT = 10_000
"""Rows of a source that are read."""
ENCODED = 16
"""Rows that are encoded: those with the most characters."""
GENERATED = 64
"""Problems that a generator is asked for."""
READ = ("data", "prompts")
"""Ports whose rows go through a model."""
GENERATORS = ("problems", "tasks")
"""Settings that name generators of problems."""


class UnknownRowsError(Exception):
    """The rows of a step are not known before it runs."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of the longest row and of the longest prompt among some rows, and their number."""

    row: int
    prompt: int
    rows: int


class PlanRows:
    """The rows that steps of a plan read."""

    def __init__(self, plan: Plan, layout: Layout):
        self.plan, self.layout, self.store = plan, layout, Store(layout)
        self.folders = tuple(dict.fromkeys((Path(plan.file).resolve().parent, Path.cwd(), layout.root)))

    def measure(self, step: Step, model: KnownModel) -> Lengths | None:
        """Return the lengths of the rows of a step for the tokenizer of a model; None where they are not known."""
        try:
            rows = list(islice(self._read_step(step), LOOKED_AT))
            if not rows or (tokenizer := load_tokenizer(model)) is None:
                return None
            return measure_rows(rows, tokenizer, step.settings)
        except (UnknownRowsError, PosttrainError):
            return None  # of rows that cannot be read, the step itself says why

    def read_first(self, step: Step, size: int) -> list["Row"]:
        """Return the first rows of a step; none where they are not known."""
        try:
            return list(islice(self._read_step(step), size))
        except (UnknownRowsError, PosttrainError):
            return []

    def _read_step(self, step: Step) -> Iterator["Row"]:
        """Yield the rows of a step from all its sources. Raise UnknownRowsError if another step makes them."""
        given = [one for one in step.inputs if one.port in READ and one.type in TABLE_TYPES]
        if not given and not any(step.settings.get(name) for name in GENERATORS):
            raise UnknownRowsError(step.name)
        for one in given:
            yield from self._read_input(one)
        yield from self._generate(step)

    def _read_input(self, given: Input) -> Iterator["Row"]:
        for name in given.steps:
            yield from self._read_made(self.plan.step(name), given)
        if given.source is not None:
            yield from self._scan(find_source(given.source, self.layout, self.folders).folder, given.type)

    def _read_made(self, step: Step, given: Input) -> Iterator["Row"]:
        """Yield the rows that a step makes: those of its artifact, or those that it reads and at most leaves out."""
        output = given.output or next(iter(step.outputs))
        if self.store.find(step.kind, step.key) is not None:
            yield from self._scan(self.store.output_folder(step.kind, step.key, output), given.type)
        elif step.kind == "data":
            yield from self._convert(step)
        elif step.kind == "curate":
            for one in (one for one in step.inputs if one.port == "data"):
                yield from self._read_input(one)
        elif step.kind == "synthesize" and step.settings["emit"] == "prompts":
            yield from self._generate(step)
        else:
            raise UnknownRowsError(step.name)

    def _convert(self, step: Step) -> Iterator["Row"]:
        """Yield the rows of the sources of a `data` step."""
        from learning.data.sources.look import read_first_rows  # pyarrow takes 0.1 s, and most plans have no sources

        stage = Data.model_validate(step.settings)
        inputs = {given.port: given for given in step.inputs}
        for index, source in enumerate(stage.sources):
            given = inputs[f"sources.{index}.from"]
            if given.source is None:
                yield from self._read_input(given)
                continue
            tables = self._find_tables(index, source.tables, inputs)
            folder = find_source(given.source, self.layout, self.folders).folder
            yield from read_first_rows(folder, source, stage.emit, LOOKED_AT, tables)

    def _find_tables(self, index: int, names: Mapping[str, object], inputs: Mapping[str, Input]) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        for name in names:
            source = inputs[f"sources.{index}.tables.{name}"].source
            if source is None:
                raise UnknownRowsError(name)
            folders[name] = find_source(source, self.layout, self.folders).folder
        return folders

    def _scan(self, folder: Path, artifact_type: str) -> Iterator["Row"]:
        from learning.data.messages import unpack_rows  # pyarrow takes 0.1 s
        from learning.data.rows import scan_rows

        for batch in scan_rows(folder, artifact_type):
            yield from unpack_rows(batch)

    def _generate(self, step: Step) -> Iterator["Row"]:
        """Yield problems of a step's own generators. Raise UnknownRowsError for one that reads what steps make."""
        from learning.lookup import bind  # torch comes with it

        uses = [(name, i, use) for name in GENERATORS for i, use in enumerate(step.settings.get(name) or ())]
        read = [given for given in step.inputs if given.port.partition(".")[0] in GENERATORS]
        inputs = {given.port: self._find_generator_input(given) for given in read}
        for name, index, settings in uses:
            use = ProblemsUse.model_validate(settings)
            size = use.options.get("size")
            if isinstance(size, int):
                use = use.model_copy(update={"size": min(size, GENERATED)})
            made = list(bind(use, f"{name}.{index}", inputs)())
            yield from made
            if isinstance(size, int) and len(made) == GENERATED:
                yield from islice(made * (size // GENERATED), min(size, LOOKED_AT) - GENERATED)

    def _find_generator_input(self, given: Input) -> Path:
        """Return the folder that a generator reads. Raise UnknownRowsError for models and for what is not made yet."""
        if given.source is not None and given.type not in MODEL_TYPES:
            return find_source(given.source, self.layout, self.folders).folder
        raise UnknownRowsError(given.port)


def load_tokenizer(model: KnownModel) -> "PreTrainedTokenizerBase | None":
    """Return the tokenizer of a model, or that of its settings; None where it cannot be loaded."""
    if isinstance(model.tokenizer, TokenizerUse):
        from learning.lookup import bind  # torch comes with it

        return None if {"source", "data"} & model.tokenizer.options.keys() else bind(model.tokenizer, "tokenizer")()
    if model.tokenizer is None:
        return None
    from learning.models.policy import load_tokenizer as load  # torch comes with it

    try:
        return load(model.tokenizer)
    except (OSError, ValueError):
        return None


def measure_rows(rows: list["Row"], tokenizer: "PreTrainedTokenizerBase", settings: JsonObject) -> Lengths:
    """Return the longest lengths of rows under the chat settings of a stage. Raise StepError if none can be encoded."""
    from learning.data.chat_settings import apply_chat  # imports transformers

    apply_chat(tokenizer, read_chat(settings))
    longest = sorted(rows, key=_count_characters, reverse=True)[:ENCODED]
    sizes = [size for row in longest for size in _encode(row, tokenizer, settings)]
    if not sizes:
        raise StepError("no row can be encoded")
    return Lengths(max(row for row, _ in sizes), max(prompt for _, prompt in sizes), len(rows))


def _encode(row: "Row", tokenizer: "PreTrainedTokenizerBase", settings: JsonObject) -> Iterator[tuple[int, int]]:
    """Yield the tokens of a row and those of its prompt; nothing for a row that its step would refuse."""
    from learning.data.chat import encode_episode, encode_prompt  # imports transformers
    from learning.data.examples import encode_row
    from learning.data.steps import encode_steps

    try:
        if row.get("steps"):
            texts = [step["content"] for step in row["steps"]]
            steps = encode_steps(tokenizer, row["prompt"], texts, settings.get("step_separator", "\n"), row)
            yield len(steps.prompt) + len(steps.completion), len(steps.prompt)
            return
        if row.get("completion"):
            example = encode_row(tokenizer, row, settings.get("train_on", "last"))
            yield len(example.ids), example.num_given
            return
        sides = [row[side] for side in ("chosen", "rejected") if row.get(side)]
        encode = partial(encode_episode, tokenizer, row["prompt"])
        for prompt, turns in (encode(side, row) for side in sides):
            yield len(prompt) + len(turns.ids), len(prompt)
        if not sides:
            prompt = encode_prompt(tokenizer, row["prompt"], row)
            yield len(prompt), len(prompt)
    except (StepError, TypeError, ValueError):
        return


def _count_characters(row: "Row") -> int:
    """Return the characters of all messages of a row."""
    names = ("prompt", "completion", "chosen", "rejected", "steps")
    return sum(len(str(message.get("content") or "")) for name in names for message in row.get(name) or ())
