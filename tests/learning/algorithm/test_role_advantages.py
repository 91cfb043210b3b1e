"""Advantage operations that treat roles in different ways."""

import pytest
import torch

from learning.algorithm.advantages.normalisation import center
from learning.algorithm.advantages.roles import reinforce
from learning.batch.batch_layout import forest
from learning.batch.columns import broadcast_to_tokens, of_rewards
from learning.rl.team import role_columns
from learning.samples.conversation import RoleSample
from schemas.errors import StepError


def batch_of(*rewards_by_role):
    samples = [
        RoleSample({"id": "q"}, 0, "policy", [1], [5, 6], [-1.0] * 2, "stop", "", reward=reward, role=role)
        for role, reward in rewards_by_role
    ]
    batch = forest(samples)
    return batch.with_paths(
        reward=torch.tensor([reward for _, reward in rewards_by_role], dtype=torch.float64)
    ), samples


def test_roles_get_their_own_reward_whatever_was_subtracted():
    batch, samples = batch_of(("asks", 0.25), ("tries", 1.0), ("tries", 0.0))
    batch = batch.with_paths(**role_columns(samples, samples))
    centred = center(of_rewards(batch), batch, by="batch")
    assert centred.values_X.tolist() == pytest.approx([-1 / 6, 7 / 12, -5 / 12])
    alone = reinforce(centred, batch, roles=["asks", "nobody"])
    assert alone.values_X.tolist() == pytest.approx([0.25, 7 / 12, -5 / 12])
    per_token = reinforce(broadcast_to_tokens(centred, batch), batch, roles=["tries"])
    expected = torch.tensor([-1 / 6, 1.0, 0.0], dtype=torch.float64)[batch.path_T]
    torch.testing.assert_close(per_token.values_X.double(), expected)


def test_a_stage_without_roles_is_refused():
    batch, _ = batch_of(("asks", 0.5))
    with pytest.raises(StepError, match="reinforce: this stage has no `roles`"):
        reinforce(of_rewards(batch), batch, roles=["asks"])
