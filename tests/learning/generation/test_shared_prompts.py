import pytest
import torch

from learning.generation.engines import slot_attention, slots
from learning.generation.engines.running import Running, gains_from_sharing
from learning.generation.engines.slot_attention import describe_decoding, shares_prompts, use_slot_attention
from learning.samples.engine_protocol import Request, Sampling
from tests.learning.generation.slot_models import FAMILIES, make_model


def make_requests() -> list[Request]:
    """Prompts of one to thirty tokens with one to four completions, one of which has begun."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randint(3, 40, (n,), generator=generator).tolist() for n in (30, 1, 12, 25, 7)]
    counts = (4, 2, 3, 1, 4)
    begun = ((), (), (5, 9), (), ())
    return [Request(ids, n, 7 + i, begun=b) for i, (ids, n, b) in enumerate(zip(made, counts, begun, strict=True))]


def sample(model, max_slots: int, *, shares: bool):
    """Completions that end at different lengths: tokens 0 to 4 end them."""
    with torch.inference_mode(), use_slot_attention(model):
        batch = Running(model, make_requests(), Sampling(1.0, 24), (0, 1, 2, 3, 4), max_slots, shares=shares)
        while batch.fill():
            batch.advance()
            assert bool(batch.slots.groups) == shares
        return batch.results(), batch.slots.most_columns


@pytest.mark.parametrize("family", FAMILIES)
def test_completions_and_log_probabilities_are_those_of_the_model(family):
    model = make_model(family)
    assert shares_prompts(model)
    for max_slots in (14, 5):
        results, plain = (sample(model, max_slots, shares=shares)[0] for shares in (True, False))
        assert len({len(g.token_ids) for group in results for g in group}) > 3, "slots are refilled and compacted"
        for request, group, other in zip(make_requests(), results, plain, strict=True):
            assert [g.token_ids for g in group] == [g.token_ids for g in other]
            for generation in group:
                ids = [*request.prompt_ids, *request.begun, *generation.token_ids]
                with torch.no_grad():
                    logp_LV = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
                first = len(ids) - len(generation.token_ids)
                want = logp_LV[range(first - 1, len(ids) - 1), ids[first:]]
                torch.testing.assert_close(torch.tensor(generation.logprobs), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["plain", "window"])
def test_greedy_completions_of_shared_prompts_are_those_of_generate(family):
    """Prompts and completions are longer than the window of 9."""
    model = make_model(family)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(3, 40, (n,), generator=generator).tolist() for n in (23, 4, 31)]
    with torch.inference_mode(), use_slot_attention(model):
        requests = [Request(ids, 3, 0) for ids in prompts]
        batch = Running(model, requests, Sampling(0.0, 20), (), 5, shares=True)
        while batch.fill():
            batch.advance()
            assert batch.slots.groups
        results = batch.results()
    for ids, group in zip(prompts, results, strict=True):
        given = torch.tensor([ids])
        whole = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=20)
        assert [g.token_ids for g in group] == [whole[0, len(ids) :].tolist()] * 3
    assert len({tuple(group[0].token_ids) for group in results}) == 3


def test_the_method_that_sampled_is_described(monkeypatch):
    model, wrong, misfit = (make_model("plain") for _ in range(3))
    agrees = "(agrees with its own forward on its weights)"
    assert describe_decoding(model) == {}
    assert not slot_attention.explain_slot_misfit(model)
    assert describe_decoding(model) == {"decoding": f"slots {agrees}"}
    assert shares_prompts(model)
    assert describe_decoding(model) == {"decoding": f"slots, shared prompts {agrees}"}
    monkeypatch.setattr(slot_attention, "_find_difference", lambda _, way: "it differs" if way == "shared" else "")
    assert not shares_prompts(wrong)
    assert not slot_attention.explain_slot_misfit(wrong)
    assert describe_decoding(wrong) == {"decoding": f"slots, as shared prompts give other numbers {agrees}"}
    monkeypatch.setattr(slot_attention, "_find_difference", lambda *_, **__: "it differs")
    slot_attention.explain_slot_misfit(misfit)
    assert describe_decoding(misfit) == {"decoding": "transformers' own cache (qwen3: it differs)"}


def test_slots_hold_no_prompts(monkeypatch):
    model = make_model("plain")
    monkeypatch.setattr(slots, "STEP", 1)
    assert [sample(model, 14, shares=shares)[1] for shares in (True, False)] == [24, 54]


def test_sharing_is_chosen_where_it_gains():
    model = make_model("plain")
    long, short = [3] * 300, [3] * 40
    assert gains_from_sharing(model, [Request(long, 8, 0)] * 8, 256)
    assert not gains_from_sharing(model, [Request(long, 1, 0)] * 64, 256), "nothing is shared"
    assert not gains_from_sharing(model, [Request(short, 8, 0)] * 8, 256), "prompts are short"
    assert not gains_from_sharing(model, [Request(long, 8, 0)] * 8, 16), "few samples run at once"


def test_wrong_attention_to_shared_prompts_is_found(monkeypatch):
    right = slot_attention._attend_after_prompts
    monkeypatch.setattr(slot_attention, "_attend_after_prompts", lambda *given: right(*given) * 1.001)
    model = make_model("plain")
    assert not shares_prompts(model)
    assert not slot_attention.explain_slot_misfit(model)
