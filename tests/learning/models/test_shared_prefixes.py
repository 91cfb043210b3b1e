"""Common prefixes are computed once: the tokens that remain, equal statistics and gradients, and what is left alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from learning.models import shared_prefixes
from learning.models.packed import choose_forward, pack, packed_hidden, packed_statistics
from learning.models.shared_prefixes import SHORTEST_SHARED, merge_prefixes, shared_hidden, shared_statistics
from learning.samples.kept_tokens import decode_kept, encode_kept


def tokens(count: int, seed: int) -> list[int]:
    """Return tokens that differ between seeds."""
    return [(7 * i + 3 * seed * (i + 1)) % 23 + 1 for i in range(count)]


PROMPT, TRUNK, BRANCH = tokens(40, 1), tokens(50, 2), tokens(36, 3)
TAILS = [tokens(9, 4), tokens(5, 5), tokens(12, 6)]
SEGMENTS = [
    PROMPT,
    TRUNK + TAILS[0],
    TRUNK + BRANCH + TAILS[1],
    TRUNK + BRANCH + TAILS[2],
    PROMPT + tokens(6, 7),  # another prompt that begins in the same way
    TAILS[0],
]
PARENTS = [-1, 0, 0, 0, -1, 4]


def paths(packed):
    """Return the ids of the whole path to each packed token, and those at the token's own position."""
    borders, parents, ids = packed.cu_seqlens_S1.tolist(), packed.parent_S.tolist(), packed.input_ids_M.tolist()
    before: list[list[int]] = []
    found = []
    for segment, parent in enumerate(parents):
        a, b = borders[segment], borders[segment + 1]
        start = before[parent] if parent >= 0 else []
        before.append(start + ids[a:b])
        found += [tuple(start + ids[a : i + 1]) for i in range(a, b)]
    return found


def test_a_common_prefix_stands_once_and_every_token_keeps_its_path():
    packed = pack(SEGMENTS, PARENTS)
    distinct = merge_prefixes(packed)
    assert distinct is not None
    # Once each: prompt 40, trunk 50, branch 36, tails 9 + 5 + 12, the rest of the second prompt 6, its completion 9.
    assert len(distinct.packed.input_ids_M) == 40 + 50 + 36 + 9 + 5 + 12 + 6 + 9
    whole, merged = paths(packed), paths(distinct.packed)
    assert [merged[i] for i in distinct.index_M.tolist()] == whole
    assert distinct.packed.position_ids_M[distinct.index_M].tolist() == packed.position_ids_M.tolist()
    assert sorted(set(distinct.index_M.tolist())) == list(range(len(distinct.packed.input_ids_M)))


def test_children_of_equal_segments_are_siblings():
    given = tokens(SHORTEST_SHARED, 8)
    packed = pack([PROMPT, given, TRUNK + TAILS[0], given, TRUNK + TAILS[1]], [-1, 0, 1, 0, 3])
    distinct = merge_prefixes(packed)
    assert distinct is not None
    assert len(distinct.packed.input_ids_M) == 40 + SHORTEST_SHARED + 50 + 9 + 5
    merged = paths(distinct.packed)
    assert [merged[i] for i in distinct.index_M.tolist()] == paths(packed)


@pytest.mark.parametrize(
    ("common", "merges"), [(SHORTEST_SHARED - 1, False), (SHORTEST_SHARED, True), (SHORTEST_SHARED + 1, True)]
)
def test_a_short_prefix_stays_where_it_is(common, merges):
    start = tokens(common, 2)
    distinct = merge_prefixes(pack([[1], [*start, 5], [*start, 6]], [-1, 0, 0]))
    assert (distinct is not None) == merges


def test_a_small_saving_changes_nothing():
    start = tokens(SHORTEST_SHARED, 2)
    long = [start + tokens(300, 3), start + tokens(300, 4)]
    assert merge_prefixes(pack([[1], *long], [-1, 0, 0])) is None


def test_empty_segments_have_descendants():
    packed = pack([PROMPT, [], [*TRUNK, 1], [*TRUNK, 2], []], [-1, 0, 1, 1, 3])
    distinct = merge_prefixes(packed)
    assert distinct is not None
    merged = paths(distinct.packed)
    assert [merged[i] for i in distinct.index_M.tolist()] == paths(packed)


def gradients(model, loss):
    """Return the gradients of a loss."""
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_statistics_and_gradients_are_those_of_the_copies(tiny_policy):
    model = tiny_policy.model.double()
    choose_forward(model)
    packed = pack(SEGMENTS, PARENTS)
    needed_M = torch.ones(len(packed.input_ids_M), dtype=torch.bool)
    needed_M[:40] = False
    needed_M[60:70] = False  # needed in other copies of the trunk
    weight_M = torch.linspace(-1, 1, len(needed_M), dtype=torch.float64)
    results = []
    for compute in (packed_statistics, shared_statistics):
        columns = compute(model, packed, followed=("lp", "entropy"), watched=("collision",), needed_M=needed_M)
        loss = (columns["lp"] * weight_M).sum() + (columns["entropy"] * weight_M**2).sum()
        results.append((columns, gradients(model, loss)))
    (want, want_grads), (found, found_grads) = results
    assert found.keys() == want.keys() == {"lp", "entropy", "collision"}
    for name, column_M in want.items():
        torch.testing.assert_close(found[name], column_M, atol=1e-10, rtol=1e-10)
        assert not found[name][~needed_M].any()
    assert int((want["lp"].detach().abs() > 1e-3).sum()) == int(needed_M.sum()) - 1  # all but the first of a root
    assert max(float(grad.abs().max()) for grad in want_grads) > 1
    for one, other in zip(found_grads, want_grads, strict=True):  # norms of the model compute in float32
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shared_hidden(model, packed), packed_hidden(model, packed), atol=1e-10, rtol=1e-10)


def test_copies_keep_their_own_tokens(tiny_policy, monkeypatch):
    """Equal records are those of the merged tokens; where two copies differ nothing is merged."""
    packed, size = pack(SEGMENTS, PARENTS), tiny_policy.model.config.vocab_size
    distinct = merge_prefixes(packed)
    shared = [encode_kept(np.arange(size)[None] % 5 != index % 5)[0] for index in distinct.index_M.tolist()]
    needed_M = torch.ones(len(packed.input_ids_M), dtype=torch.bool)
    copies = (distinct.index_M == distinct.index_M.mode().values).nonzero()[:, 0].tolist()
    other = ["" if at == copies[0] else record for at, record in enumerate(shared)]
    merged = []
    monkeypatch.setattr(shared_prefixes, "find_shared", lambda *given: merged.append(given) or distinct)
    for records in (shared, other):
        with torch.no_grad():
            want, found = (
                compute(tiny_policy.model, packed, followed=("lp", "entropy"), needed_M=needed_M, kept_M=records)
                for compute in (packed_statistics, shared_statistics)
            )
        kept_M = torch.tensor(
            [bool(mask[i]) for mask, i in zip(decode_kept(records, size), packed.input_ids_M, strict=True)]
        )
        torch.testing.assert_close(found["entropy"], want["entropy"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found["lp"][kept_M], want["lp"][kept_M], atol=1e-5, rtol=1e-5)
        assert len(copies) > 1
    assert len(merged) == 2


def test_the_forward_pass_is_over_distinct_tokens_alone(tiny_policy, monkeypatch):
    packed = pack(SEGMENTS, PARENTS)
    sizes = []

    def count(model, given, **options):
        sizes.append(len(given.input_ids_M))
        return packed_statistics(model, given, **options)

    monkeypatch.setattr(shared_prefixes, "packed_statistics", count)
    needed_M = torch.ones(len(packed.input_ids_M), dtype=torch.bool)
    shared_statistics(tiny_policy.model, packed, needed_M=needed_M)
    assert sizes == [167]
    # A model whose own forward pass computes whole paths gets the forest as it is.
    padded = replace(choose_forward(tiny_policy.model), body="padded")
    monkeypatch.setattr(shared_prefixes, "choose_forward", lambda model: padded)
    shared_statistics(tiny_policy.model, packed, needed_M=needed_M)
    assert sizes == [167, len(packed.input_ids_M)]


def test_a_mixture_of_experts_counts_every_copy():
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    assert shared_prefixes.find_shared(model, pack(SEGMENTS, PARENTS)) is None
