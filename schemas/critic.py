"""The block `critic:` of an rl stage: a value function learnt beside the policy, and which functions train it."""

from schemas.auxiliary import Network


class Critic(Network):
    """A critic: the body of the starting policy with a value at every token, an optimiser and a rate of its own.

    Its targets come from the operation of `advantage` that reads its values (`gae`, `value_difference`).
    """
