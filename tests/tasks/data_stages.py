"""Stages of kind data over files that a test writes."""

import json

from learning.data.rows import read_rows
from schemas.stages.data import Data
from tasks.context import Context
from tasks.data import run


def line(*texts, **more):
    """A conversation as a line of JSON: messages of user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"messages": messages, **more})


def convert(folder, files, emit="chat", stage=None, **source):
    """The rows that a stage makes of files (name to bytes or text), its result, and the folder of its report."""
    data = folder / "in"
    for name, content in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    work = folder / "work"
    work.mkdir()
    sources = [{"from": "path:in", **source}]
    stage = Data.model_validate({"kind": "data", "emit": emit, "sources": sources, **(stage or {})})
    result = run(stage, Context({"sources.0.from": data}, work, folder / "checkpoints", seed=0))
    return read_rows(work / "outputs/data", emit), result, work / "outputs/report"
