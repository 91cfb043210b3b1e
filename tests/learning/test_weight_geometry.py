import math

import pytest
import torch

from learning.merge.weight_geometry import bf16_sparsity, nss, principal_angle, principal_mask_overlap, weight_lines
from schemas.errors import StepError


def matrix(seed, rows=20, columns=12):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(size, angle, i=0, j=1):
    turn = torch.eye(size, dtype=torch.float64)
    turn[[i, j], [i, j]] = math.cos(angle)
    turn[i, j], turn[j, i] = -math.sin(angle), math.sin(angle)
    return turn


def test_spectra_see_scale_and_not_rotation():
    w, other = matrix(0), matrix(1)
    direct = torch.linalg.svdvals(other) - torch.linalg.svdvals(w)
    assert nss(w, other) == pytest.approx(float(direct.norm() / w.norm()), rel=1e-12)
    assert nss(w, 1.1 * w) == pytest.approx(0.1, rel=1e-12)
    assert nss(w, rotation(20, 0.7) @ w) == pytest.approx(0, abs=1e-14)
    assert math.isnan(nss(w[0], other[0]))
    assert math.isnan(nss(0 * w, other))


def test_angles_of_left_and_right_spaces():
    w = torch.diag(torch.tensor([5.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    turn = rotation(4, math.radians(20), 1, 2)  # the second direction leaves the plane of the first two
    assert principal_angle(w, turn @ w) == pytest.approx(0, abs=1e-6)
    assert principal_angle(w, turn @ w, k=2) == pytest.approx(20, abs=1e-6)
    assert principal_angle(w, turn @ w, k=2, side="right") == pytest.approx(0, abs=1e-6)
    assert principal_angle(w, w @ turn.T, k=2, side="right") == pytest.approx(20, abs=1e-6)
    assert principal_angle(w, w.flip(0), k=1) == pytest.approx(90)
    assert math.isnan(principal_angle(w, w, k=5))


def test_overlap_is_one_on_the_principal_entries_and_chance_everywhere():
    before = torch.zeros(10, 10, dtype=torch.float64)
    before[0] = torch.arange(10, 0, -1)  # of rank one: the principal tenth is the first row
    before[1:] = 1e-3
    inside, outside, everywhere = before.clone(), before.clone(), before + 1.0
    inside[0, :4] += 1.0
    outside[5:] += 1.0
    assert principal_mask_overlap(before, inside, k=1) == 1.0
    assert principal_mask_overlap(before, outside, k=1) == 0.0
    assert principal_mask_overlap(before, everywhere, k=1) == pytest.approx(0.1)
    assert math.isnan(principal_mask_overlap(before, before))


def test_what_bfloat16_hides():
    a, b = torch.tensor([1.0, 1.0, 0.0, -2.0]).double(), torch.tensor([1.0005, 1.01, 0.0, 2.0]).double()
    assert bf16_sparsity(a, b) == 0.5
    assert bf16_sparsity(a, b, tolerance=0.02) == 0.75


def test_a_models_number_counts_entries_and_leaves_out_what_has_none():
    before = {"a": torch.ones(2, 2), "b": torch.ones(6), "ids": torch.arange(3)}
    after = {"a": torch.ones(2, 2) * 2, "b": torch.ones(6), "ids": torch.arange(3)}
    lines = weight_lines("new", "old", before, after, {"bf16_sparsity": bf16_sparsity, "nss": nss})
    assert lines == [
        {"model": "new", "against": "old", "measure": "bf16_sparsity", "value": 0.6, "tensors": 2},
        {"model": "new", "against": "old", "measure": "nss", "value": 1.0, "tensors": 1},
    ]
    with pytest.raises(StepError, match="differ in tensor b"):
        weight_lines("new", "old", before, after | {"b": torch.ones(7)}, {})
