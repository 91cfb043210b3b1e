"""Problems and texts that people wrote, in JSON lines."""

import hashlib
import json
from pathlib import Path

from learning.data.rows import Row
from schemas.errors import StepError
from schemas.references import AnyRef


def written(*, data: AnyRef, file: str, family: str, instruction: str = "") -> list[Row]:
    """Read problems from a file of JSON lines, `{"question": ..., "answer": ...}`, in a folder: `data: path:./folder`.

    `instruction` is placed before every question. Raise StepError for a line that has no question and answer as text.
    """
    folder = Path(data)
    path = folder / Path(file).name
    if not path.is_file():
        raise StepError(f"written: {folder.name} has no {file}")
    rows: dict[str, Row] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            question, answer = _read_line(line, f"{path.name}:{number}")
            name = hashlib.sha256(f"{family}\n{question}".encode()).hexdigest()[:16]
            prompt = [{"role": "user", "content": f"{instruction}{question}"}]
            rows[name] = {"id": name, "prompt": prompt, "answer": answer, "family": family, "metadata": None}
    return list(rows.values())


def _read_line(line: str, where: str) -> tuple[str, str]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise StepError(f"{where}: no JSON: {error}") from error
    question, answer = (entry.get(key) if isinstance(entry, dict) else None for key in ("question", "answer"))
    if not isinstance(question, str) or not isinstance(answer, str):
        raise StepError(f'{where}: expected {{"question": text, "answer": text}}')
    return question, answer
