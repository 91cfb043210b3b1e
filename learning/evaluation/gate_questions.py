"""The tests that a gate asks for; plans read them, too, so that nothing here takes long to import."""

from dataclasses import dataclass

from schemas.gates import Gate, list_regressions


@dataclass(frozen=True)
class Question:
    """One test of a gate: of which metric and family, against which bound, wrong how often."""

    kind: str
    """`min_delta` or `max_regression`."""
    name: str
    """As the gate names it: `accuracy`, `accuracy.chain_sum`."""
    bound: float
    """The difference must reach it (`min_delta`), or must not be proven to lie below it (`max_regression`)."""
    tail: float


def list_questions(gate: Gate, confidence: float) -> list[Question]:
    """Return the tests of a gate; `confidence` is the stage's."""
    tail = (1 - (gate.confidence or confidence)) / 2
    questions = [] if gate.min_delta is None else [Question("min_delta", gate.metric, gate.min_delta, tail)]
    budgets = list_regressions(gate)
    return questions + [Question("max_regression", n, -allowed, tail / len(budgets)) for n, allowed in budgets.items()]
