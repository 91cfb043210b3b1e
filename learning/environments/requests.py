"""Environment `requests`: several requests of a user in one episode, each of them an episode of another environment.

A problem's metadata has them: `{"requests": [{"text": "when is bob?"}, {"text": "book cleo at 10"}]}`. The first one is
what the prompt asks.
"""

import json

from learning.data.rows import Row, read_metadata
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import EnvironmentProtocol, Episode, Outcome
from schemas.errors import StepError
from schemas.use import EnvUse


class Environment:
    """Play `of` once for each of the user's requests: when it ends, its answer is the next request.

    Other entries of a request, such as its `checklist`, replace those of the metadata for the episode of `of`, which
    begins again: nothing of one request is left for the next one but the conversation. Turns have the kind `request 0`,
    `request 1` and so on; the advantage operation `by_kind` compares those of a group with each other.
    """

    def __init__(self, *, of: EnvUse) -> None:
        self.inner = build_environment(of, {})

    def begin(self, row: Row, seed: int) -> "Requests":
        """Return an episode. Raise StepError for a row without requests."""
        return Requests(self.inner, split_requests(row), seed)


class Requests:
    """The requests of an episode, and the episode of the present one."""

    def __init__(self, inner: EnvironmentProtocol, rows: list[Row], seed: int) -> None:
        self.inner, self.rows, self.seed = inner, rows, seed
        self.number, self.episode = 0, self._begin(0)

    def _begin(self, number: int) -> Episode:
        return self.inner.begin(self.rows[number], self.seed + number)

    def step(self, action: str) -> Outcome:
        """Carry out a turn in the episode of the present request."""
        outcome = self.episode.step(action)
        changes: dict[str, object] = {"kind": f"request {self.number}"}
        if outcome.done and self.number + 1 < len(self.rows):
            self.number += 1
            self.episode = self._begin(self.number)
            changes |= {"done": False, "observation": self.rows[self.number]["prompt"][-1]["content"]}
        values = {name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}
        return Outcome(**{**values, **changes})


def split_requests(row: Row) -> list[Row]:
    """Return a row for each request, with its text as the last message. Raise StepError for a row without requests."""
    notes = read_metadata(row)
    requests = notes.pop("requests", None)
    listed = requests if isinstance(requests, list) else []
    if not listed or not all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in listed):
        raise StepError(
            f"env requests: row {row.get('id')}: its metadata needs `requests`, a list such as "
            '[{"text": "when is bob?"}, {"text": "book cleo"}]; the first one is what its prompt asks'
        )
    return [
        row
        | {"prompt": [*row["prompt"][:-1], {"role": "user", "content": one["text"]}]}
        | {"metadata": json.dumps({**notes, **{key: value for key, value in one.items() if key != "text"}})}
        for one in listed
    ]
