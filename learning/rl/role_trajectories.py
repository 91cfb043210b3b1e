"""The table of trajectories of a stage with roles: one row for each role of an episode."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from learning.samples.conversation import RoleSample
from learning.samples.sample import Row, Sample
from learning.sampling.trajectories import EPISODES, Trajectories

ROLES = pa.schema([*EPISODES, ("role", pa.string()), ("policy", pa.string()), ("conversation", pa.int32())])
"""`conversation` is the number of the episode in its iteration."""


class RoleTrajectories(Trajectories):
    """Trajectories with the role and the policy of every row; each policy decodes its own tokens."""

    def __init__(
        self, folder: Path, share: float, seed: int, decoders: Mapping[str, Callable[[list[int]], str]]
    ) -> None:
        """Set the function that decodes tokens of each policy."""
        super().__init__(folder, share, seed, next(iter(decoders.values())))
        self.schema, self.decoders = ROLES, decoders

    def _row(self, sample: Sample, advantage: float | None) -> Row:
        assert isinstance(sample, RoleSample)
        self.decode = self.decoders[sample.policy]
        own = {"role": sample.role, "policy": sample.policy, "conversation": sample.conversation}
        return super()._row(sample, advantage) | own
