"""The block `critic:` of an rl stage: a value function that is trained together with the policy."""

from schemas.auxiliary import Network


class Critic(Network):
    """A value function at every token, by default on the starting policy's body, with its own optimiser.

    Its targets come from the operation in `advantage` that uses its values (`gae`, `value_difference`).
    """
