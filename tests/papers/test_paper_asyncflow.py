"""AsyncFlow: completions are scored while others are sampled, each row is used once, and a threshold bounds the lag.

Not shown: 1.59 times the throughput; a store that is spread over machines.
"""

import threading
from collections import Counter
from pathlib import Path

import pytest
import torch

from learning.generation.engines.torch import Engine
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse
from tests.papers.loops import Loop, Update, by_chance, equal, letters

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "asyncflow.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
LENGTHS = dict(zip("abcdefgh", (2, 20, 5, 11, 3, 17, 8, 14), strict=True))
READ = []
"""Rows, as the reward task gets them."""
GATE = threading.Event()


def noted(rows, completions):
    """A reward that writes down what it reads."""
    READ.extend(row["id"] for row in rows)
    return [float(len(text)) for text in completions]


def held(rows, completions):
    """A reward that keeps one row until it is let go."""
    if rows[0]["id"] == "0a":
        GATE.wait(60)
    return noted(rows, completions)


@pytest.fixture
def loop():
    made = []
    READ.clear()
    GATE.clear()

    def make(name, policy, rows, *, reward="noted", **how):
        made.append(Loop(STAGES[name], policy, rows, rewards=[RewardUse(use=f"{__name__}:{reward}")], **how))
        return made[-1]

    yield make
    GATE.set()
    for one in made:
        one.stream.close()


def test_the_first_row_is_scored_before_the_last_one_is_sampled(scripted, loop):
    """The event log in decode steps: a row is scored in the step in which its completion ends."""
    run = loop("trained", scripted(LENGTHS), letters("abcdefgh"), num_groups=8, max_staleness=0, steps_per_update=0)
    log, turn = [], run.source.turn

    def turned():
        seen = len(READ)
        flown = turn()
        log.append(("sampled", run.clock, [ticket for ticket, _ in run.source.service.outbox], seen))
        return flown

    run.source.turn = turned
    run.iterate()
    sampled = {clock: len(tickets) for _, clock, tickets, _ in log if tickets}
    assert sampled == dict.fromkeys(sorted(LENGTHS.values()), 1)
    # After each step as many rows had been read as had been written before it, the first one 18 steps before the last.
    for _, clock, _, seen in log:
        assert seen == sum(length < clock for length in LENGTHS.values())
    assert [f"{i}{x}" for i, x in sorted(enumerate(LENGTHS), key=lambda pair: LENGTHS[pair[1]])] == READ


def test_the_trainer_gets_rows_whose_columns_are_both_written_each_once(scripted, loop):
    """Every completion of the first batch has ended, but one has no score yet: that one is not among those taken."""
    run = loop(
        "trained",
        scripted(LENGTHS),
        letters("abcdefgh"),
        num_groups=4,
        reward="held",
        max_staleness=1,
        ahead=0,
        max_steps=4,
    )
    first, received = run.stream, []
    # Iteration 0 asks for rows 0 to 3 alone; it waits for all of them, since nothing else is there.
    waiting = threading.Thread(target=lambda: received.append(run.iterate()))
    waiting.start()
    with first.changed:
        assert first.changed.wait_for(lambda: scored(first) == 3 and all(g.ended for g in first.groups), 60)
        unscored = [group for group in first.groups if group.scored is None]
        assert [group.members[0].request.row["id"] for group in unscored] == ["0a"]
    assert waiting.is_alive()
    GATE.set()
    waiting.join(60)
    taken = [t.row["id"] for t in received[0]]
    for _ in range(3):
        taken += [t.row["id"] for t in run.iterate()]
    assert Counter(taken) == Counter(READ) == dict.fromkeys([row["id"] for row in letters("abcdefgh")], 2)


@pytest.mark.parametrize(("name", "threshold"), [("trained", 1), ("strict", 0)])
def test_the_trainer_is_ahead_by_the_threshold_and_no_more(scripted, loop, name, threshold):
    assert STAGES[name].rollout.options["max_staleness"] == threshold
    run = loop(name, scripted(LENGTHS), letters("abcdefgh"), num_groups=4, max_steps=6)
    lags = [step - version for step in range(6) for t in run.iterate() for version in t.versions]
    assert max(lags) == threshold
    assert min(lags) == 0


def test_with_threshold_0_gradients_are_the_synchronous_ones(tiny_policy, loop):
    rows = letters("abcdefgh")
    strict = loop("strict", tiny_policy, rows, num_groups=4, n=4, tokens=9, plan=by_chance)
    sync = loop("synchronous", tiny_policy, rows, num_groups=4, n=4, tokens=9, plan=by_chance)
    sync.stream = Plain(tiny_policy)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        iterations = [strict.iterate(), sync.iterate()]
        assert [t.completion_ids for t in iterations[0]] == [t.completion_ids for t in iterations[1]]
        ours, theirs = (
            Update(STAGES[name], tiny_policy, step).at_once(samples)
            for name, samples in zip(("strict", "synchronous"), iterations, strict=True)
        )
        equal(ours, theirs)
        with torch.no_grad():
            for parameter in tiny_policy.model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        for run in (strict, sync):
            run.stream.sync(step + 1)


def scored(stream):
    return sum(group.scored is not None for group in stream.groups)


class Plain(Engine):
    """The engine of a stage that waits for its rollout."""

    def close(self):
        """Nothing is beside it."""
