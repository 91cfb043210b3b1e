"""A new user's folder: a checkpoint with a BPE tokenizer and a chat template, files of rows, a reward, a recipe."""

import io
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flows.cli import main
from tests.bpe_checkpoint import write_bpe_checkpoint

RECIPE = """\
name: mine
stages:
  tuned:
    kind: sft
    model: path:model
    data: path:train.jsonl
    max_steps: 2
    max_length: 128
    per_device_train_batch_size: 4
    learning_rate: 1e-4
  better:
    kind: rl
    algorithm: grpo
    model: tuned
    prompts: path:questions.jsonl
    rewards: [{use: "mine:score"}]
    num_generations: 4
    generation_batch_size: 8
    max_completion_length: 8
    max_steps: 1
    learning_rate: 1e-5
  check:
    kind: evaluate
    models: {before: path:model, after: better}
    prompts: path:exam.jsonl
    rewards: [{use: "mine:score"}]
    max_completion_length: 8
"""
REWARD = '''\
"""A reward of one's own."""


def score(rows, completions, *, bonus: float = 0.0):
    """Return 1 for the right answer, and a little for a digit."""
    values = []
    for row, text in zip(rows, completions, strict=True):
        values.append(float(text.strip() == row["answer"]) + 0.01 * len(text) + bonus)
    return values
'''
SUMS = [{"prompt": f"What is {a} plus {b}?", "answer": str(a + b)} for a in range(1, 9) for b in range(1, 6)]
QUESTIONS, EXAM = SUMS[:30], SUMS[30:]


def write_lines(rows: list[dict]) -> str:
    """Return rows as JSON Lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def make_model(folder: Path) -> None:
    """Write a checkpoint whose BPE tokenizer was trained on the sums."""
    write_bpe_checkpoint(folder, [(row["prompt"], row["answer"]) for row in SUMS])


def write_files(folder: Path) -> None:
    """Write all of the folder except the model."""
    (folder / "mine.yaml").write_text(RECIPE)
    (folder / "mine.py").write_text(REWARD)
    (folder / "pyproject.toml").write_text("")
    (folder / "train.jsonl").write_text(write_lines([{**row, "completion": row["answer"]} for row in QUESTIONS]))
    (folder / "questions.jsonl").write_text(write_lines(QUESTIONS))
    (folder / "exam.jsonl").write_text(write_lines(EXAM))


@dataclass(frozen=True)
class User:
    """Types commands in a folder; each runs in this process."""

    folder: Path

    def __call__(self, *words: str) -> tuple[int, str]:
        """Return the exit code of a command and what it printed."""
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
            patch.chdir(self.folder)
            patch.delenv("POSTTRAIN_ROOT", raising=False)
            patch.setattr(sys, "argv", ["posttrain", *words])
            patch.setattr(sys, "path", list(sys.path))
            sys.modules.pop("mine", None)
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0), printed.getvalue()


Edit = str | bytes | tuple[str, str] | Callable[[Path], object]
"""New content of a file, text and what replaces it, or what to do with its path."""


@dataclass(frozen=True)
class Mistake:
    """Edits of a right folder by file, and parts of the message that they lead to."""

    message: tuple[str, ...]
    edits: Mapping[str, Edit] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """Further words of the command."""

    def make(self, folder: Path) -> None:
        """Edit the files of a folder."""
        for name, edit in self.edits.items():
            file = folder / name
            if callable(edit):
                edit(file)
            elif isinstance(edit, bytes):
                file.write_bytes(edit)
            elif isinstance(edit, str):
                file.write_text(edit)
            else:
                old, new = edit
                text = file.read_text()
                assert old in text, f"{name} has no {old!r}"
                file.write_text(text.replace(old, new, 1))
