"""An environment of the library verifiers: find a number of a range from the answers `+` (higher) and `-` (lower)."""

import json
from typing import Any

from learning.toy_tasks.guesses import guesses


def load_environment(size: int = 300, tests: int = 150) -> Any:
    """Return the environment, with `size` problems for training and `tests` for evaluation. Needs verifiers."""
    import datasets  # an optional dependency, as the next
    import verifiers

    class HiddenNumber(verifiers.MultiTurnEnv):
        """Two guesses; the answer to the first tells on which side of it the number is."""

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            guess = messages[-1]["content"].strip()
            if not guess.isdecimal():
                return [{"role": "user", "content": "?"}]
            return [{"role": "user", "content": "+" if int(guess) < int(state["answer"]) else "-"}]

        @verifiers.stop
        async def found(self, state: Any) -> bool:
            return is_found(state)

    def is_found(state: Any) -> bool:
        turns = state["trajectory"]
        return bool(turns) and turns[-1]["completion"][-1]["content"].strip() == state["answer"]

    def number_found(state: Any) -> float:
        return float(is_found(state))

    def make_entries(split: Any, many: int) -> Any:
        rows = guesses(split=split, size=many)
        return datasets.Dataset.from_list(
            [{"prompt": row["prompt"], "answer": row["answer"], **json.loads(row["metadata"])} for row in rows]
        )

    return HiddenNumber(
        dataset=make_entries("train", size),
        eval_dataset=make_entries("test", tests),
        rubric=verifiers.Rubric(funcs=[number_found]),
        max_turns=2,
    )
