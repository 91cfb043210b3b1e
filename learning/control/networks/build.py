"""Networks of control policies, by TorchRL's modules: actors, action values, state values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical

from learning.control.networks.balanced_actor import BalancedActor
from learning.control.networks.boosted_trees import Columns, TreeEnsemble
from learning.control.networks.combination_values import ArmValues, CombinationValues
from learning.control.networks.context_actor import NUMBERS, ContextActor
from learning.control.networks.conversation_graph import ChooseCandidate, ConversationValues
from learning.control.networks.form_network import FormValues, find_sizes
from learning.control.networks.json_encoder import FromBytes, LeafSum, TreeEncoder
from learning.control.networks.return_conditioned import ReturnConditioned
from learning.control.stepping.spaces import Spaces
from schemas.control import NetworkSettings
from schemas.errors import StepError

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


class FirstNumbers(nn.Module):
    """Leaves out the numbers at the end of an observation."""

    def __init__(self, seen: int) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the first numbers."""
        return observation[..., : self.seen]


@dataclass(frozen=True)
class Networks:
    """Builds networks for the spaces of a world; all have hidden layers of the same sizes."""

    spaces: Spaces
    settings: NetworkSettings

    def _mlp(self, inputs: int, outputs: int, *, normalise: bool = False) -> Any:
        from torchrl.modules import MLP

        sizes = list(self.settings.hidden_sizes)
        return MLP(
            in_features=inputs,
            out_features=outputs,
            num_cells=sizes,
            activation_class=ACTIVATIONS[self.settings.activation],
            norm_class=nn.LayerNorm if normalise else None,
            norm_kwargs=[{"normalized_shape": size} for size in sizes] if normalise else None,
        )

    def _mlp_of_actor(self, outputs: int) -> Any:
        """Return a network from what the actor sees of an observation. Raise StepError if that is nothing."""
        seen = self.spaces.observations - self.settings.privileged
        if not self.settings.privileged:
            return self._mlp(seen, outputs)
        if seen < 1:
            raise StepError(
                f"networks: privileged {self.settings.privileged} leaves the actor none of the "
                f"{self.spaces.observations} numbers of an observation"
            )
        return nn.Sequential(FirstNumbers(seen), self._mlp(seen, outputs))

    def _require_nothing_privileged(self) -> None:
        """Raise StepError if values are to see more than the actor where both are one network."""
        if self.settings.privileged:
            raise StepError("networks: privileged needs an actor beside the values: use sac, td3, ddpg, ppo or a2c")

    def make_stochastic_actor(self) -> Any:
        """Return an actor that draws actions: a Gaussian squashed into the box, or a distribution over choices."""
        from tensordict.nn import TensorDictModule
        from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal

        spaces = self.spaces
        if spaces.is_discrete:
            logits = TensorDictModule(self._mlp_of_actor(spaces.actions), ["observation"], ["logits"])
            return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)
        body = nn.Sequential(self._mlp_of_actor(2 * spaces.actions), NormalParamExtractor())
        return ProbabilisticActor(
            TensorDictModule(body, ["observation"], ["loc", "scale"]),
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            distribution_kwargs=self._bounds(),
            return_log_prob=True,
        )

    def make_deterministic_actor(self) -> Any:
        """Return an actor with one action for each observation, squashed into the box."""
        from tensordict.nn import TensorDictModule, TensorDictSequential
        from torchrl.modules import TanhModule

        body: Any = TensorDictModule(self._mlp_of_actor(self.spaces.actions), ["observation"], ["raw"])
        squash: Any = TanhModule(in_keys=["raw"], out_keys=["action"], **self._bounds())
        return TensorDictSequential(body, squash)

    def make_choice_values(self) -> Any:
        """Return an actor that takes the choice with the highest value, (B, choices) under `action_value`."""
        from torchrl.modules import QValueActor

        self._require_nothing_privileged()
        body = self._mlp(self.spaces.observations, self.spaces.actions)
        return QValueActor(module=body, in_keys=["observation"], action_space="categorical")

    def make_action_value(self) -> Any:
        """Return the value of an observation and an action of the box."""
        from torchrl.modules import ValueOperator

        inputs = self.spaces.observations + self.spaces.actions
        network = self._mlp(inputs, 1, normalise=self.settings.layer_norm)
        return ValueOperator(network, in_keys=["observation", "action"])

    def make_values_of_choices(self) -> Any:
        """Return the values of all choices, (B, choices) under `action_value`."""
        from tensordict.nn import TensorDictModule

        return TensorDictModule(
            self._mlp(self.spaces.observations, self.spaces.actions), ["observation"], ["action_value"]
        )

    def make_state_value(self) -> Any:
        """Return the value of an observation."""
        from torchrl.modules import ValueOperator

        return ValueOperator(self._mlp(self.spaces.observations, 1), in_keys=["observation"])

    def _make_team_mlp(self, outputs: int, *, central: bool = False) -> Any:
        """Return networks of all agents, each its own or one for all.

        They go from the observation of one, or of all, to (B, G, outputs).
        """
        from torchrl.modules import MultiAgentMLP

        self._require_nothing_privileged()
        activation: Any = ACTIVATIONS[self.settings.activation]
        spaces, sizes = self.spaces, self.settings.hidden_sizes
        network = MultiAgentMLP(
            n_agent_inputs=spaces.observations // spaces.agents,
            n_agent_outputs=outputs,
            n_agents=spaces.agents,
            centralized=central,
            share_params=self.settings.share_agents,
            num_cells=list(sizes),
            depth=len(sizes),
            activation_class=activation,
        )
        return nn.Sequential(nn.Unflatten(-1, (spaces.agents, -1)), network)

    def make_team_values(self) -> Any:
        """Return an actor that takes for each agent the choice with the highest value by its own network."""
        from tensordict.nn import TensorDictModule, TensorDictSequential
        from torchrl.modules import QValueModule

        body: Any = TensorDictModule(self._make_team_mlp(self.spaces.actions), ["observation"], ["action_value"])
        choose: Any = QValueModule(action_space="categorical")
        return TensorDictSequential(body, choose)

    def make_team_actor(self) -> Any:
        """Return an actor that draws a choice for each agent, each by its own network."""
        from tensordict.nn import TensorDictModule
        from torchrl.modules import ProbabilisticActor

        logits = TensorDictModule(self._make_team_mlp(self.spaces.actions), ["observation"], ["logits"])
        return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)

    def make_team_critic(self, *, central: bool) -> Any:
        """Return the values (B, G, 1) of what each agent sees, or of what all see."""
        from torchrl.modules import ValueOperator

        return ValueOperator(self._make_team_mlp(1, central=central), in_keys=["observation"])

    def make_joint_critic(self) -> Any:
        """Return values (B, G, A, …, A) under `joint_value`: each agent's, by what it sees, of the choices of all."""
        from tensordict.nn import TensorDictModule

        agents, choices = self.spaces.agents, self.spaces.actions
        body = nn.Sequential(self._make_team_mlp(choices**agents), nn.Unflatten(-1, (choices,) * agents))
        return TensorDictModule(body, ["observation"], ["joint_value"])

    def make_tree_actor(self) -> Any:
        """Return an actor that draws choices by the first outputs of boosted trees; the last one is a value."""
        from tensordict.nn import TensorDictModule, TensorDictSequential
        from torchrl.modules import ProbabilisticActor

        choices = self.spaces.actions
        trees: Any = TensorDictModule(TreeEnsemble(choices + 1), ["observation"], ["outputs"])
        logits: Any = TensorDictModule(Columns(0, choices), ["outputs"], ["logits"])
        body: Any = TensorDictSequential(trees, logits)
        return ProbabilisticActor(body, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)

    def make_form_values(self) -> Any:
        """Return an actor that takes the choice with the highest value in a form, (B, choices) under `action_value`."""
        from torchrl.modules import QValueActor

        _, words = find_sizes(self.spaces)
        hidden = self._mlp(3 * words + 2, 1)
        body = FormValues(self.spaces, hidden, self.settings.hidden_sizes[0] if self.settings.hidden_sizes else 8)
        return QValueActor(module=body, in_keys=["observation"], action_space="categorical")

    def make_conversation_values(self) -> Any:
        """Return an actor that takes the candidate with the highest value in a conversation about items."""
        from tensordict.nn import TensorDictModule, TensorDictSequential

        self._require_nothing_privileged()
        size, heads = (self.settings.hidden_sizes or [16])[0], self.settings.heads
        if size % heads:
            raise StepError(f"networks: {heads} heads do not divide a hidden layer of {size}")
        values = ConversationValues(self.spaces, size, heads)
        body: Any = TensorDictModule(values, ["observation"], ["action_value", "candidate"])
        choose: Any = TensorDictModule(
            ChooseCandidate(), ["action_value", "candidate"], ["action", "chosen_action_value"]
        )
        return TensorDictSequential(body, choose)

    def make_json_actor(self) -> Any:
        """Return an actor as that of `make_stochastic_actor` which reads observations as JSON trees."""
        return JsonNetworks(self.spaces, self.settings, TreeEncoder).make_stochastic_actor()

    def make_leaf_sum_actor(self) -> Any:
        """Return an actor as that of `make_stochastic_actor` which reads the sum of what is in a JSON tree."""
        return JsonNetworks(self.spaces, self.settings, LeafSum).make_stochastic_actor()

    def make_combination_values(self) -> CombinationValues:
        """Return the value of an observation and a combination of the team's choices between 0 and 1."""
        spaces = self.spaces
        return CombinationValues(self._mlp(spaces.observations + spaces.agents, 1), spaces.agents)

    def make_arm_values(self) -> ArmValues:
        """Return the value of a combination as a sum over the agents that choose 1."""
        spaces = self.spaces
        return ArmValues(self._mlp(spaces.observations, spaces.agents + 1), spaces.agents)

    def make_return_conditioned_actor(self) -> ReturnConditioned:
        """Return an actor that is given the return that is still to come, and remembers its episode."""
        self._require_nothing_privileged()
        return ReturnConditioned(self.spaces, self.settings)

    def make_balanced_actor(self) -> BalancedActor:
        """Return a family of policies, and the choice of one of them for each observation."""
        self._require_nothing_privileged()
        seen = replace(self.spaces, observations=self.spaces.observations + 1)
        # A choice from 0 to 1 is an action of a box of one number, without its spread.
        chosen = replace(self.spaces, actions=1, low=(0.0,), high=(1.0,))
        family = Networks(seen, self.settings).make_stochastic_actor()
        return BalancedActor(family, Networks(chosen, self.settings).make_deterministic_actor())

    def make_context_actor(self) -> ContextActor:
        """Return a policy that is given a summary of an episode, with the summary that it acts for."""
        self._require_nothing_privileged()
        seen = replace(self.spaces, observations=self.spaces.observations + NUMBERS)
        encoder = self._mlp(self.spaces.observations + self.spaces.actions, NUMBERS)
        return ContextActor(Networks(seen, self.settings).make_stochastic_actor(), encoder, self.spaces)

    def _bounds(self) -> dict[str, Any]:
        return {"low": torch.tensor(self.spaces.low), "high": torch.tensor(self.spaces.high)}


@dataclass(frozen=True)
class JsonNetworks(Networks):
    """Networks behind encoders of JSON, whose states have the size of the first hidden layer, or 16 without one."""

    encoder: type[TreeEncoder] | type[LeafSum]

    def _mlp(self, inputs: int, outputs: int, *, normalise: bool = False) -> Any:
        self._require_nothing_privileged()
        encoder = self.encoder(self.settings.hidden_sizes[0] if self.settings.hidden_sizes else 16)
        return nn.Sequential(FromBytes(encoder), super()._mlp(encoder.outputs, outputs, normalise=normalise))
