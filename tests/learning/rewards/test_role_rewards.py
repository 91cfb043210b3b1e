"""Rewards of episodes that roles share."""

import pytest

from learning.lookup import bind
from learning.samples.conversation import RoleSample
from learning.samples.sample import Sample
from schemas.errors import StepError
from schemas.use import RewardUse

HERE = __name__
SCORES = {"a": 0.2, "b": 0.7, "x": None}


def points(completions):
    return [SCORES[text] for text in completions]


def sample(conversation, role, text, places):
    own = {"role": role, "conversation": conversation, "places": places}
    return RoleSample({"id": "q"}, 0, "policy", [1], [5], [-1.0], "stop", text, **own)


SAMPLES = [
    sample(0, "first", "a", [0, 2]),
    sample(0, "second", "b", [1]),
    sample(1, "second", "b", [1]),
    sample(1, "first", "x", [0]),
    sample(2, "second", "a", [0]),
]


def score(samples=SAMPLES, **use):
    bound = bind(RewardUse.model_validate({"of": f"{HERE}:points", **use}))
    supplies = {"samples": samples, "completions": [s.text for s in samples], "rows": [s.row for s in samples]}
    return bound.ask(0, supplies)


def test_the_outcome_is_what_was_said_last():
    assert score(use="roles.outcome") == [0.2, 0.2, 0.7, 0.7, 0.2]
    assert score(use="roles.outcome", role="second") == [0.7, 0.7, 0.7, 0.7, 0.2]
    assert score(use="roles.outcome", role="first") == [0.2, 0.2, None, None, None]


def test_the_total_is_the_sum_over_the_roles():
    assert score(use="roles.total") == [pytest.approx(0.9), pytest.approx(0.9), None, None, 0.2]


def test_one_role_alone_is_scored():
    assert score(use="roles.only", role="second") == [0.0, 0.7, 0.7, 0.0, 0.2]


def test_a_role_earns_what_the_attempts_of_another_achieve():
    said = [sample(0, "first", "a", [0]), *(sample(0, "second", text, [i + 1]) for i, text in enumerate("bax"))]
    said += [sample(1, "first", "b", [0])]
    shared = {"use": "roles.downstream", "role": "first", "solver": "second"}
    assert score(said, **shared) == [pytest.approx(0.45), 0.7, 0.2, None, None]
    assert score(said, **shared, share="failure")[0] == pytest.approx(0.55)
    assert score(said, **shared, otherwise=-0.5) == [pytest.approx(0.45), 0.7, 0.2, None, -0.5]
    # Attempts that cannot be scored are not the same as none.
    failed = [sample(0, "first", "a", [0]), sample(0, "second", "x", [1])]
    assert score(failed, **shared, otherwise=-0.5) == [None, None]


def test_the_outcome_is_the_last_attempt():
    said = [sample(0, "second", "a", [1]), sample(0, "second", "b", [2])]
    assert score(said, use="roles.outcome", role="second") == [0.7, 0.7]


def test_a_stage_without_roles_is_refused():
    plain = [Sample({"id": "q"}, 0, "policy", [1], [5], [-1.0], "stop", "a")]
    with pytest.raises(StepError, match="has no `roles`"):
        score(plain, use="roles.outcome")
