"""Instructions that say how much care a question deserves, teachers that obey them, and one that writes better ones."""

import json
from collections import Counter

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.encyclopaedia import fact_finder
from schemas.errors import StepError

CARE = {"guess": 1.0, "look hastily": 0.5, "look": 0.25, "look well": 0.1, "look with care": 0.0}
"""How often the answer under an instruction is another word of the last documents; `guess` does not search at all."""


def obedient(row: Row, rng: np.random.Generator) -> str:
    """Write the next turn of `fact_finder` as the system message says: `guess`, or `look` more or less well.

    Raise StepError for another instruction.
    """
    first, *messages = row["prompt"]
    text = str(first["content"])
    if first["role"] != "system" or text not in CARE:
        raise StepError(f"teacher obedient: row {row['id']} has no system message among: {', '.join(CARE)}")
    if text == "guess":
        words = [word for one in json.loads(row["metadata"])["documents"] for word in one.split()[2:]]
        return words[int(rng.integers(len(words)))]
    return fact_finder(row | {"prompt": messages}, rng, error_rate=CARE[text])


def careful_writer(row: Row, rng: np.random.Generator) -> str:
    """Write an instruction that asks for more care than those that failed most, or for some other one of `CARE`.

    The row is that of the prompt sampler `instruction_population`.
    """
    about = json.loads(row["metadata"])
    failed = Counter(one["instruction"] for one in about["experience"])
    known, order = {entry["text"] for entry in about["instructions"]}, list(CARE)
    worst = max((order.index(text) for text in failed if text in CARE), key=lambda i: failed[order[i]], default=0)
    better = [text for text in order[worst + 1 :] if text not in known]
    return (better or order)[int(rng.integers(len(better or order)))]
