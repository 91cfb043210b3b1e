"""Trained policies that terms of a loss refer to."""

import torch
from tensordict import TensorDict

from learning.control.losses.references import kl_to_policy
from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.stepping.spaces import Spaces
from schemas.control import NetworkSettings


def test_reading_the_policy_leaves_the_random_numbers_of_a_step_as_they_are(tmp_path):
    spaces, settings = Spaces(3, 2), NetworkSettings(hidden_sizes=[4])
    torch.manual_seed(0)
    actor, other = (Networks(spaces, settings).make_stochastic_actor() for _ in range(2))
    ControlPolicy(spaces, settings, "make_stochastic_actor", other).save(tmp_path, {})
    batch = TensorDict({"observation": torch.randn(5, 3)}, [5])
    before = torch.get_rng_state()
    first = kl_to_policy(batch, actor, policy=str(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
    again = kl_to_policy(batch, actor, policy=str(tmp_path))
    assert torch.equal(first, again)
    assert first > 0
