"""A vocabulary of 150,000 tokens needs the memory of its matrices and of a bounded number of logits."""

from types import SimpleNamespace

import pytest
import torch

from learning.evaluation.answer_likelihood import measure_answer_logprobs
from learning.generation.engines import token_sampling
from learning.generation.engines.token_sampling import LOGITS_AT_ONCE, pick
from learning.generation.engines.torch import Engine
from learning.memory_model.estimate import LOGITS_AT_ONCE as LOGITS_OF_THE_ESTIMATE
from learning.models import packed as packed_module
from learning.models.packed import LOGITS_PER_CHUNK, choose_forward, pack, packed_logprobs
from learning.models.policy import Policy
from learning.samples.engine_protocol import Request, Sampling
from tests.conftest import small_policy
from tests.learning.models.shard_ranks import Counter
from tests.models.families import make_family

VOCABULARY, WIDTH = 150_000, 32
MATRIX = VOCABULARY * WIDTH * 4
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed


def peak_of(compute):
    """Return the most bytes that tensors hold at a time during a computation."""
    with Counter() as counter:
        compute()
    return counter.peak


@pytest.mark.parametrize("temperatures", [(0.0,), (1.0,), (0.0, 0.7, 1.3)], ids=["greedy", "drawn", "mixed"])
def test_tokens_of_many_rows_are_those_of_all_rows_at_once(monkeypatch, temperatures):
    generator = torch.Generator().manual_seed(0)
    logits_BV = torch.randn(7, 50, generator=generator) * 3
    uniform_B1 = torch.rand(7, 1, generator=generator, dtype=torch.float64)
    temperature_B = torch.tensor([temperatures[row % len(temperatures)] for row in range(7)])

    def sample():
        return pick(
            logits_BV,
            temperature_B,
            uniform_B1 if max(temperatures) else None,
            greedy=0.0 in temperatures,
            place_B=torch.arange(7),
            processor=lambda logits, place_B: logits / (1 + place_B[:, None]),
            entropy=True,
        )

    whole = sample()
    monkeypatch.setattr(token_sampling, "LOGITS_AT_ONCE", 120)
    parts = sample()
    assert torch.equal(parts.token_B, whole.token_B)
    assert torch.equal(parts.logprob_B, whole.logprob_B)
    assert torch.equal(parts.entropy_B, whole.entropy_B)


def test_a_draw_holds_the_logits_and_the_distributions_of_some_rows():
    logits_BV, ones_B = torch.randn(64, VOCABULARY), torch.ones(64)
    uniform_B1 = torch.full((64, 1), 0.5, dtype=torch.float64)
    peak = peak_of(lambda: pick(logits_BV, ones_B, uniform_B1, greedy=False, place_B=ones_B.long()))
    assert LOGITS_AT_ONCE == LOGITS_OF_THE_ESTIMATE
    assert peak <= logits_BV.nbytes + LOGITS_AT_ONCE * (2 * 4 + 2 * 8) + 10_000
    assert peak < 0.6 * 64 * VOCABULARY * (4 + 2 * 4 + 2 * 8)


def test_a_training_pass_holds_the_matrix_its_gradients_and_two_chunks():
    model = make_family("llama", vocab_size=VOCABULARY, hidden_size=WIDTH, tie_word_embeddings=True)
    packed = pack([list(range(3, 123)), list(range(300, 420))], [-1, -1])
    choose_forward(model)
    peak = peak_of(lambda: packed_logprobs(model, packed)[0].sum().backward())
    # Weights, the gradient of the embedding, that of the head and its part from one chunk.
    assert peak <= 4 * MATRIX + 2 * 4 * LOGITS_PER_CHUNK + 2_000_000
    assert peak < 4 * MATRIX + 2 * 240 * VOCABULARY * 4


def test_log_probabilities_without_a_gradient_hold_one_chunk():
    model = make_family("bloom", vocab_size=VOCABULARY)
    packed = pack([list(range(3, 203)), list(range(300, 500))], [-1, -1])
    assert choose_forward(model).body == "padded"
    with torch.no_grad():
        peak = peak_of(lambda: packed_logprobs(model, packed))
    assert peak <= MATRIX + 4 * LOGITS_PER_CHUNK + 2_000_000


def test_stepwise_generation_without_a_cache_computes_the_logits_of_last_tokens_only():
    model = make_family("bloom", vocab_size=VOCABULARY)
    engine = Engine(SimpleNamespace(model=model, stop_ids=(2,), max_length=256), max_slots=8)
    prompts = [list(range(3 + row, 43 + row)) for row in range(8)]
    sampling = Sampling(0.0, max_new_tokens=2)
    flight = engine.flight(sampling)

    def step():
        for ticket, prompt in enumerate(prompts):
            flight.add(ticket, Request(prompt, 1, seed=0))
        flight.step()

    assert peak_of(step) <= MATRIX + 8 * VOCABULARY * (3 * 4 + 8) + 2_000_000  # all logits take 192 MB


def test_the_likelihood_of_an_answer_needs_the_logits_of_a_chunk(monkeypatch):
    policy, chunk = small_policy(1024), 1 << 20
    monkeypatch.setattr(packed_module, "LOGITS_PER_CHUNK", chunk)
    model = make_family("llama", vocab_size=10_000, max_position_embeddings=1024, tie_word_embeddings=True)
    choose_forward(model)
    row = {"id": "a", "prompt": [{"role": "user", "content": "b"}], "answer": "c" * 250}
    wide = Policy(model, policy.tokenizer, 1024)
    peak = peak_of(lambda: measure_answer_logprobs(wide, [row]))
    assert peak <= 10_000 * WIDTH * 4 + 4 * chunk + 2_000_000  # all logits take 10 MB
