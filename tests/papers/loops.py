"""An rl stage of a recipe with generation beside training, and without an update: what proofs look at."""

import copy

import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_factors
from learning.batch.batch_layout import forest
from learning.generation.services.local_rollouts import LocalRollouts
from learning.models.sharded_model import Trained
from learning.rl.iteration import collect_samples
from learning.rl.references import References
from learning.rl.sampling_slots import bind_sampling_slots
from learning.rl.update import update, with_proximal
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import History, SampleRequest
from learning.sampling.iteration_context import IterationContext
from learning.sampling.sampler import Sampler
from learning.streaming.group_updates import GroupUpdates
from learning.streaming.stream import Stream
from schemas.use import PromptSamplerUse


def in_turn(rows, num_groups, n, step):
    """The problems in their order, greedily, so that a scripted policy says what its script says."""
    return [SampleRequest(rows[(step * num_groups + i) % len(rows)], n, temperature=0.0) for i in range(num_groups)]


def by_chance(rows, num_groups, n, step):
    """The problems in their order, sampled as the stage samples."""
    return [SampleRequest(rows[(step * num_groups + i) % len(rows)], n) for i in range(num_groups)]


def letters(text):
    """Problems of one letter each."""
    return [
        {"id": f"{i}{x}", "prompt": [{"role": "user", "content": x}], "answer": x, "family": "f", "metadata": "{}"}
        for i, x in enumerate(text)
    ]


class Loop:
    """Iterations of a stage: `train` is called with the samples of each in the place of an update."""

    def __init__(self, stage, policy, rows, *, num_groups, n=1, plan=in_turn, max_steps=20, tokens=64, **more):
        """`more` may be `rewards`, a `source` of completions, and options of the rollout function."""
        rewards, source = more.pop("rewards", stage.rewards), more.pop("source", None)
        named = PromptSamplerUse(use=f"{__name__}:{plan.__name__}")
        use = stage.rollout.model_copy(update=more)
        self.stage = stage.model_copy(update={"rollout": use, "prompt_sampler": named, "rewards": rewards})
        self.parts, self.policy, self.tokens = bind_sampling_slots(self.stage, {}), policy, tokens
        self.source = LocalRollouts(stage.engine, policy) if source is None else source
        self.stream = Stream(self.source)
        self.have = {"rows": rows, "num_groups": num_groups, "n": n, "seed": 0, "states": {}, "metrics": {}}
        self.have["max_steps"], self.step = max_steps, 0

    def iterate(self, train=lambda samples: None, consume=None):
        """The samples of an iteration, after which the weights that `train` leaves are those that sample."""
        sampler = Sampler(self.stream, self.policy, Sampling(1.0, self.tokens), 0, self.step)
        supplies = {**self.have, "step": self.step, "consume": consume}
        samples = collect_samples(self.parts, IterationContext(**supplies, sampler=sampler, history=History()), {})
        train(samples)
        self.step += 1
        self.stream.sync(self.step)
        return samples

    @property
    def clock(self):
        """Decode steps so far, where they are counted."""
        return int(self.source.service.counts["steps"])


class Update:
    """A stage's update by gradient descent with rate 1 on a copy of the policy: what moves is the gradient."""

    def __init__(self, stage, policy, step=0):
        self.stage = stage.model_copy(update={"max_grad_norm": None, "num_mini_batches": 1, "rewards": []})
        self.policy, self.now, self.algorithm = policy, step, bind_algorithm(self.stage, {})
        self.trained = Trained(copy.deepcopy(policy.model))
        self.optimizer = torch.optim.SGD(self.trained.model.parameters(), lr=1.0)
        self.reference = References(self.stage, self.algorithm, policy, {})
        self.pieces = GroupUpdates(self.algorithm, self.trained, self.stage, step, self.prepared)

    def columns(self, samples):
        how = {"max_tokens": self.stage.max_tokens_per_micro_batch, "temperature": self.stage.temperature}
        batch = self.reference.add_to(with_dropped(forest(samples), False), self.trained, **how)
        return with_proximal(self.algorithm, batch, self.trained, self.stage)

    def credited(self, batch):
        return with_factors(self.algorithm, with_advantages(self.algorithm, batch, self.now), self.now, seed=0)

    def prepared(self, samples):
        return samples, self.credited(self.columns(samples))

    def at_once(self, samples):
        """The gradient of a batch that has waited for all of its samples."""
        batch = self.prepared(samples)[1]
        update(self.algorithm, self.trained, self.optimizer, batch, self.stage, self.now)
        return self.moved()

    def finish(self, samples):
        """The gradient of what has been added to `pieces`."""
        self.pieces.step(self.optimizer, self.credited(self.pieces.join(forest(samples))))
        return self.moved()

    def moved(self):
        pairs = zip(self.policy.model.named_parameters(), self.trained.model.parameters(), strict=True)
        return {name: (before - after).detach() for (name, before), after in pairs}


def equal(ours, theirs, within=1e-6):
    """Whether two gradients are, and are not nothing."""
    assert max(float(g.abs().max()) for g in theirs.values()) > 1e-3
    for name, want in theirs.items():
        torch.testing.assert_close(ours[name], want, atol=within, rtol=0)
