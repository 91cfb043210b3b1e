"""Tokenizers with a vocabulary of 150,000 entries: training, saving, loading and encoding.

    python benchmarks/tokenizer_vocabulary.py [--kinds bpe wordpiece unigram] [--entries 150000] [--megabytes 40]

The text is made up with a fixed seed: words of one to five syllables, drawn by Zipf's law. Each kind is a process of
its own; one JSON line gives for each the entries that it learned, CPU seconds of training, of saving, of loading by
transformers and by posttrain, the increase of the peak of resident memory while it is trained and while it is loaded,
in MB, and megabytes of text that it encodes in a CPU second.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("bpe", "wordpiece", "unigram")
WORDS, SYLLABLES, SLOPE, ROW = 600_000, 900, 1.05, 4000


def write_texts(folder: Path, megabytes: int) -> None:
    """Write rows of made-up text."""
    import numpy as np

    from learning.data.rows import write_rows

    draw = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    syllables = ["".join(draw.choice(letters, n)) for n in draw.integers(2, 4, SYLLABLES)]
    words = ["".join(syllables[i] for i in draw.integers(0, SYLLABLES, n)) for n in draw.integers(1, 6, WORDS)]
    weights = 1 / np.arange(2, WORDS + 2) ** SLOPE
    chosen: Iterator[int] = iter(draw.choice(WORDS, megabytes * 200_000, p=weights / weights.sum()).tolist())
    texts, size = [], 0
    while size < megabytes * 1_000_000:
        text = ""
        while len(text) < ROW:
            text += words[next(chosen)] + " "
        texts.append(text)
        size += len(text)
    rest: dict[str, Any] = {"answer": "", "family": "words", "metadata": "{}"}
    write_rows(folder, "prompts", [{"id": str(i), "prompt": said(t), **rest} for i, t in enumerate(texts)])


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def time_call(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, CPU seconds, and MB by which the peak of resident memory rose."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    result = function()
    return result, time.process_time() - began, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def train(kind: str, entries: int, data: Path, folder: Path) -> dict[str, float]:
    """Train and save a tokenizer."""
    from learning.data import trained_tokenizers

    make = getattr(trained_tokenizers, kind)
    tokenizer, seconds, memory = time_call(lambda: make(data=str(data), vocab_size=entries))
    _, saving, _ = time_call(lambda: tokenizer.save_pretrained(folder))
    return {"entries": len(tokenizer), "train_s": seconds, "train_mb": memory, "save_s": saving}


def load(data: Path, folder: Path) -> dict[str, float]:
    """Load a tokenizer both ways, and encode a megabyte of text."""
    from transformers import AutoTokenizer

    from learning.data.rows import read_rows
    from learning.models.policy import load_tokenizer

    plain, theirs, memory = time_call(lambda: AutoTokenizer.from_pretrained(folder))
    ours, seconds, _ = time_call(lambda: load_tokenizer(folder))
    texts = [row["prompt"][0]["content"] for row in read_rows(data, "prompts")[: 1_000_000 // ROW]]
    ids, encoding, _ = time_call(lambda: [ours.encode(text) for text in texts])
    if any(plain.decode(one) != text for one, text in zip(ids, texts, strict=True)):
        raise SystemExit("a text is another one after encoding and decoding")
    speed = sum(map(len, texts)) / 1e6 / encoding
    return {"transformers_load_s": theirs, "load_s": seconds, "load_mb": memory, "encode_mb_per_s": speed}


def run_part(part: str, kind: str, entries: int, data: Path, folder: Path) -> dict[str, float]:
    """Run one part in a process of its own."""
    command = [sys.executable, __file__, "--part", part, "--kinds", kind, "--entries", str(entries)]
    done = subprocess.run([*command, str(data), str(folder)], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{part} {kind} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--entries", type=int, default=150_000)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--part", choices=["train", "load"], help=argparse.SUPPRESS)
    parser.add_argument("folders", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.part:
        data, folder = options.folders
        parts = {
            "train": lambda: train(options.kinds[0], options.entries, data, folder),
            "load": lambda: load(data, folder),
        }
        say(json.dumps({key: round(value, 3) for key, value in parts[options.part]().items()}))
        return
    result: dict[str, Any] = {"benchmark": "tokenizer_vocabulary", "megabytes": options.megabytes}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "rows")
        data.mkdir()
        write_texts(data, options.megabytes)
        for kind in options.kinds:
            folder = Path(scratch, kind)
            trained = run_part("train", kind, options.entries, data, folder)
            result[kind] = {**trained, **run_part("load", kind, options.entries, data, folder)}
    say(json.dumps(result))


if __name__ == "__main__":
    main()
