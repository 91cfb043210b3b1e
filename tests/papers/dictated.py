"""Episodes whose turns are dictated: the environment, the context policy and the rewards are those of a stage."""

from learning.data.chat import decode, encode_completion
from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.scoring import scores_of

TOKENS = 400


class Dictated:
    """An engine that writes the turns of each sample's script; notes the texts of all contexts.

    A script is a list of turns, or a function that returns the next turn, given all contexts so far.
    """

    def __init__(self, tokenizer, scripts):
        self.tokenizer, self.scripts, self.contexts = tokenizer, scripts, {}

    def generate(self, requests, sampling):
        return [[self.write(request, request.first + i) for i in range(request.n)] for request in requests]

    def write(self, request, number):
        contexts, script = self.contexts.setdefault(number, []), self.scripts[number]
        contexts.append(decode(self.tokenizer, [*request.prompt_ids, *request.begun]))
        text = script(contexts) if callable(script) else script[len(contexts) - 1]
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": text}])
        return Generation(ids, [-1.0] * len(ids), "stop")

    def sync(self, version):
        pass


def play(policy, stage, row, scripts, env=None):
    """Samples of a problem in a stage's environment, one per script, and the contexts of each."""
    engine = Dictated(policy.tokenizer, scripts)
    episodes = wrap_in_environment(engine, env or stage.env, policy.tokenizer, {}, policy.max_length)
    samples = Sampler(episodes, policy, Sampling(1.0, TOKENS), 0, 0).sample([SampleRequest(row, len(scripts))])
    (reward,) = (bind(use) for use in stage.rewards)
    supplies = {"rows": [row] * len(samples), "completions": [one.text for one in samples], "samples": samples}
    for sample, value in zip(samples, scores_of(reward, 0, supplies, {}), strict=True):
        sample.scores, sample.reward = {reward.name: value}, value
    return samples, engine.contexts
