"""A model that follows a script: completions of known lengths, without weights to speak of."""

import copy

import pytest


@pytest.fixture
def scripted(tiny_policy, monkeypatch):
    """Make a policy that answers a prompt of one letter with that letter, and ends after as many tokens as told.

    Its `model.calls` counts forward passes over new tokens; `model.sharpness`, its only weight, changes how sure it is,
    not what it says.
    """
    import torch
    from transformers.modeling_outputs import CausalLMOutput

    from learning.models.policy import Policy

    # What it says depends on where a slot stands, and it has no forward over whole rows to compare with.
    monkeypatch.setattr("learning.generation.engines.torch.explain_slot_misfit", lambda model: "")

    class Scripted(torch.nn.Module):
        def __init__(self, lengths, eos, size):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([2.0]))
            self.config = copy.copy(tiny_policy.model.config)
            self.lengths, self.eos, self.size = lengths, eos, size
            self.calls = 0

        @property
        def sharpness(self):
            return float(self.weight)

        @sharpness.setter
        def sharpness(self, value):
            with torch.no_grad():
                self.weight.fill_(value)

        @property
        def device(self):
            return self.weight.device

        def base_model(self, **ignored):
            """A prompt needs no memory."""

        def forward(self, input_ids, position_ids, **ignored):
            self.calls += 1
            logits = torch.zeros(*input_ids.shape, self.size)
            for row, (letter, place) in enumerate(
                zip(input_ids[:, 0].tolist(), position_ids[:, 0].tolist(), strict=True)
            ):
                says = self.eos if place == self.lengths.get(letter, 1) - 1 else letter
                logits[row, 0, says] = self.sharpness
            return CausalLMOutput(logits=logits)

    def make(lengths):
        tokenizer = copy.deepcopy(tiny_policy.tokenizer)
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        ids = {tokenizer.convert_tokens_to_ids(letter): n for letter, n in lengths.items()}
        return Policy(Scripted(ids, tokenizer.eos_token_id, len(tokenizer)), tokenizer, 128)

    return make


@pytest.fixture
def loop():
    """Makes loops of `tests.papers.loops`, and closes their streams."""
    from tests.papers.loops import Loop

    made = []

    def make(*args, **kwargs):
        made.append(Loop(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.stream.close()
