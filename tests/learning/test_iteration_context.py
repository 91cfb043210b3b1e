"""What an iteration supplies by name, and the code that a stage brings for its optional parts."""

import importlib
from zlib import crc32

import numpy as np
import pytest

from learning.lookup import Bound, Overlay, load_optional
from learning.rl.auxiliary_models import AuxiliaryModels
from learning.sampling.iteration_context import IterationContext
from schemas.errors import StepError
from schemas.stages.rl import OPTIONAL_CODE, Rl

STAGE = {
    "kind": "rl",
    "model": "m",
    "prompts": "p",
    "rewards": ["answers.exact"],
    "advantage": ["center"],
    "ratio": "token",
    "policy_loss": "clipped",
    "loss_aggregation": "token_mean",
    "max_steps": 1,
    "learning_rate": 1e-3,
}


def context(**more):
    return IterationContext(step=3, seed=7, rows=[{"id": "a"}], num_groups=1, n=2, **more)


def test_names_without_a_value_cannot_be_asked_for():
    assert "samples" not in context()
    assert "samples" in context(samples=[])
    assert sorted(context()) == ["metrics", "n", "num_groups", "rows", "seed", "states", "step"]
    with pytest.raises(StepError, match="asks for samples; here there is metrics, n, num_groups, rows, seed, states"):
        Bound("f", lambda samples: samples, {}).ask(3, context())


def test_random_streams_are_of_seed_step_round_and_slot():
    draw = Bound("f", lambda rng: rng.random(), {}, slot="rewards.0")
    places = [7, 3, 0, crc32(b"rewards.0")]
    assert draw.ask(3, context()) == draw.ask(3, context(round=0)) == np.random.default_rng(places).random()
    assert draw.ask(3, context(round=1)) == np.random.default_rng([7, 3, 1, places[3]]).random()


def test_a_slot_has_its_own_state():
    states = {}
    Bound("f", lambda state: state.update(seen=1), {}, slot="rollout").ask(0, context(states=states))
    assert states == {"rollout": {"seen": 1}}


def test_an_overlay_replaces_names():
    over = Overlay(context(), {"rows": [], "extra": 1})
    assert (over["rows"], over["extra"], over["seed"]) == ([], 1, 7)
    assert "samples" not in over


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({}, set()),
        ({"critic": {}}, {"auxiliary_models"}),
        ({"env": "guess"}, {"environment"}),
        ({"routing_replay": True}, {"routing_replay"}),
        ({"agent": "a"}, {"agent_environment", "agent_rows", "environment"}),
    ],
)
def test_a_stage_brings_the_code_of_the_parts_that_it_uses(more, parts):
    stage = Rl.model_validate(STAGE | more)
    assert set(stage.optional_code()) == parts
    assert load_optional(stage, "auxiliary_models") is (AuxiliaryModels if "critic" in more else None)


def test_every_optional_part_is_defined_where_the_stage_names_it():
    for module, name in OPTIONAL_CODE.values():
        assert callable(getattr(importlib.import_module(module), name))
