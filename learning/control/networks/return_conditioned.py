"""A policy conditioned on the return that is still to come: the decision transformer, and what it remembers as it acts.

Shapes: N worlds, B windows, K steps of a window, O numbers of an observation, A of an encoded action.
(Chen et al. 2021.)
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Steps
from schemas.control import NetworkSettings
from schemas.errors import StepError


class ReturnConditioned(nn.Module):
    """Predicts the action of each step from the returns to go, observations and actions up to it.

    The transformer is that of the library transformers, without dropout. Observations are normalised and returns
    divided by what `fit_scales` reads in the data. Windows are padded behind their end, where a causal model does not
    look.
    """

    def __init__(self, spaces: Spaces, settings: NetworkSettings) -> None:
        super().__init__()
        from transformers import DecisionTransformerConfig, DecisionTransformerModel

        sizes = settings.hidden_sizes
        if len(set(sizes)) != 1 or sizes[0] % settings.heads:
            raise StepError(
                f"networks: a transformer has hidden layers of one size that {settings.heads} heads divide, and not "
                f"{sizes}: set for example `hidden_sizes: [128, 128, 128]`"
            )
        self.spaces, self.settings = spaces, settings
        # The names of two tokens are none of this model's; 0 keeps the library from warning about its own defaults.
        config = DecisionTransformerConfig(
            state_dim=spaces.observations,
            act_dim=spaces.actions,
            hidden_size=sizes[0],
            n_layer=len(sizes),
            n_head=settings.heads,
            max_ep_len=settings.longest_episode,
            n_positions=3 * settings.context,
            activation_function=settings.activation,
            action_tanh=not spaces.is_discrete,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.transformer: Any = DecisionTransformerModel(config)
        self.register_buffer("shift", torch.full((spaces.observations,), torch.nan))
        self.register_buffer("width", torch.ones(spaces.observations))
        self.register_buffer("return_scale", torch.ones(()))
        self.register_buffer("target_return", torch.full((), torch.nan))

    def fit_scales(self, observation_CO: Tensor, return_C: Tensor, target: float) -> None:
        """Take the scales from data of C steps, unless there are some: those of a model that is continued stay."""
        if self.get_buffer("shift").isnan().any():
            self.get_buffer("shift").copy_(observation_CO.mean(0))
            deviation_O = observation_CO.std(0, correction=0)
            self.get_buffer("width").copy_(torch.where(deviation_O > 0, deviation_O, 1.0))
            largest = float(return_C.abs().max())
            self.get_buffer("return_scale").fill_(largest if largest > 0 else 1.0)
        self.get_buffer("target_return").fill_(target)

    def encode_actions(self, action: Tensor) -> Tensor:
        """Return choices as one-hot vectors, numbers in a box between −1 and 1."""
        if self.spaces.is_discrete:
            return nn.functional.one_hot(action, self.spaces.actions).float()
        low, high = action.new_tensor(self.spaces.low), action.new_tensor(self.spaces.high)
        return 2 * (action - low) / (high - low) - 1

    def forward(self, observation_BKO: Tensor, action_BKA: Tensor, return_BK: Tensor, step_BK: Tensor) -> Tensor:
        """Return logits of choices, or numbers between −1 and 1 (B, K, A). Raise StepError for too long episodes."""
        if int(step_BK.max()) >= self.settings.longest_episode:
            raise StepError(
                f"networks: an episode has more than longest_episode {self.settings.longest_episode} steps: raise it"
            )
        shown_BKO = (observation_BKO - self.get_buffer("shift")) / self.get_buffer("width")
        return self.transformer(
            states=shown_BKO,
            actions=action_BKA,
            returns_to_go=(return_BK / self.get_buffer("return_scale"))[..., None],
            timesteps=step_BK,
        ).action_preds

    def begin(self, count: int) -> "Memory":
        """Return what acts in `count` worlds whose episodes begin."""
        return Memory(self, count)


class Memory:
    """The last `context` steps of the present episode of each world, by which the policy acts."""

    def __init__(self, actor: ReturnConditioned, count: int) -> None:
        self.actor = actor
        self.episodes: list[Remembered] = [self._start() for _ in range(count)]

    def _start(self) -> "Remembered":
        return Remembered(float(self.actor.get_buffer("target_return")), self.actor.settings.context)

    def act(self, observation_NO: np.ndarray, *, explore: bool) -> np.ndarray:
        """Return the action of every world; choices are drawn if `explore`."""
        spaces = self.actor.spaces
        for episode, observation_O in zip(self.episodes, observation_NO, strict=True):
            episode.add(observation_O)
        last_N = torch.tensor([len(episode.observations) - 1 for episode in self.episodes])
        length = int(last_N.max()) + 1
        windows = [episode.fill_window(length, spaces) for episode in self.episodes]
        observation, action, to_go, step = (torch.from_numpy(np.stack(column)) for column in zip(*windows, strict=True))
        with torch.no_grad():
            made_NA = self.actor(observation, action, to_go, step)[torch.arange(len(last_N)), last_N]
            if not spaces.is_discrete:
                low_A, high_A = (np.array(bound, np.float32) for bound in (spaces.low, spaces.high))
                return low_A + (made_NA.numpy() + 1) / 2 * (high_A - low_A)
            return (made_NA.softmax(-1).multinomial(1)[:, 0] if explore else made_NA.argmax(-1)).numpy()

    def see(self, steps: Steps) -> None:
        """Remember what was done and earned; begin again where an episode ended."""
        taken_NA = self.actor.encode_actions(torch.from_numpy(steps.action)).numpy()
        for n, episode in enumerate(self.episodes):
            if steps.terminated[n] or steps.truncated[n]:
                self.episodes[n] = self._start()
            else:
                episode.end_step(taken_NA[n], float(steps.reward[n]))


class Remembered:
    """The last steps of an episode, and the return that is still wanted of it."""

    def __init__(self, wanted: float, context: int) -> None:
        self.wanted, self.context, self.step = wanted, context, 0
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.returns: list[float] = []

    def add(self, observation_O: np.ndarray) -> None:
        """Begin a step; the oldest one is forgotten when there are more than the context holds."""
        self.observations = [*self.observations, observation_O][-self.context :]
        self.returns = [*self.returns, self.wanted][-self.context :]
        self.actions = self.actions[max(0, len(self.actions) + 1 - self.context) :]

    def end_step(self, action_A: np.ndarray, reward: float) -> None:
        """Keep the action of the step; its reward is no longer wanted."""
        self.actions.append(action_A)
        self.wanted -= reward
        self.step += 1

    def fill_window(self, length: int, spaces: Spaces) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return observations, actions, returns to go and step numbers of `length` steps, zero behind the present."""
        observation = np.zeros((length, spaces.observations), np.float32)
        action, to_go = np.zeros((length, spaces.actions), np.float32), np.zeros(length, np.float32)
        step, known = np.zeros(length, np.int64), len(self.observations)
        observation[:known], to_go[:known] = self.observations, self.returns
        step[:known] = np.arange(self.step + 1 - known, self.step + 1)
        if self.actions:
            action[: len(self.actions)] = self.actions
        return observation, action, to_go, step
