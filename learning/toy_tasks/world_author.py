"""A script in place of a language model that writes configurations of worlds for the skill that is weakest."""

import json
import re

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate

FENCED = re.compile(r"```json\n(.*?)\n```", re.DOTALL)


def world_author(
    row: Row, rng: np.random.Generator, *, helps: dict[str, list[str]], share: Rate = 0.3, error_rate: Rate = 0.0
) -> str:
    """Return a configuration in which what `helps` the weakest skill is raised by a `share` of its range.

    Before any rates are known, what helps any skill is raised from its lowest value. With chance `error_rate` a number
    is out of bounds, as those of a model may be.
    """
    fields = json.loads(row["metadata"])["fields"]
    shown = [json.loads(text) for text in FENCED.findall(row["prompt"][-1]["content"])]
    if len(shown) == 2:
        config, rates = shown
        raised = helps[min(rates, key=lambda skill: (rates[skill], list(rates).index(skill)))]
    else:
        config, raised = (
            {name: low for name, (low, _) in fields.items()},
            [name for some in helps.values() for name in some],
        )
    for name in raised:
        low, high = fields[name]
        value = min(config[name] + share * (high - low), high)
        config[name] = (
            min(int(np.ceil(value)), high) if isinstance(low, int) and isinstance(high, int) else round(value, 4)
        )
    if rng.random() < error_rate:
        name = list(fields)[int(rng.integers(len(fields)))]
        config[name] = 2 * fields[name][1] + 1
    return f"```json\n{json.dumps(config)}\n```"
