"""Operations of the advantage pipeline and weights of the loss, by numbers that were worked out by hand."""

import json
import math
import statistics

import pytest
import torch

from learning.algorithm.advantages import normalisation as advantages
from learning.algorithm.loss import with_dropped
from learning.algorithm.loss_aggregation import aggregation as weighing
from learning.batch import columns
from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView
from learning.lookup import bind
from learning.samples.sample import Sample
from schemas.errors import StepError
from schemas.use import AdvantageUse

PLACES = [
    # group, row, family, source, length, reward
    (0, "a", "sum", "policy", 2, 1.0),
    (0, "a", "sum", "policy", 3, 0.0),
    (0, "a", "sum", "greedy", 2, 0.5),
    (1, "b", "maze", "policy", 1, 4.0),
    (1, "b", "maze", "policy", 5, 2.0),
    (1, "b", "maze", "expert", 2, 9.0),
    (2, "a", "sum", "policy", 4, 3.0),
]


def made():
    """Three groups, two of the same problem, with a greedy completion and an expert's."""
    samples = [
        Sample(
            {"id": row, "family": family},
            group,
            source,
            [1, group],
            [7] * n,
            None if source == "expert" else [-1.0] * n,
            "stop",
            "x",
            versions=[0] * n,
            scores={"r": r},
            reward=r,
        )
        for group, row, family, source, n, r in PLACES
    ]
    return forest(samples)


def ask(name, batch=None, column=None, states=None, step=0, **options):
    batch = batch or made()
    column = column or columns.of_rewards(batch)
    bound = bind(AdvantageUse.model_validate({"use": name, **options}), "advantage.0")
    rows = [{"id": row, "family": family} for _, row, family, *_ in PLACES]
    return bound.ask(step, ColumnView(batch, states={} if states is None else states, rows=rows), column, batch)


def values(*args, **options):
    return ask(*args, **options).values_X.tolist()


def test_keys_say_whose_mean_it_is():
    assert values("center", by="prompt") == pytest.approx([-0.125, -1.125, -0.625, -1.0, -3.0, 4.0, 1.875])
    assert values("center", by="family") == values("center", by="prompt")
    assert values("center", by="batch") == pytest.approx([r - 19.5 / 7 for *_, r in PLACES])
    policy, alone = [1.0, 0.0, 4.0, 2.0, 3.0], [0.5, 9.0]
    of = {"policy": sum(policy) / 5, "greedy": 0.5, "expert": 9.0}
    assert values("center", by="source") == pytest.approx([r - of[source] for *_, source, _, r in PLACES])
    assert sum(alone) == of["greedy"] + of["expert"]
    assert values("center", by="group", within="source") == pytest.approx([0.5, -0.5, 0.0, 1.0, -1.0, 0.0, 0.0])


def test_a_statistic_may_be_that_of_some_sources():
    # ReMax: the greedy completion's reward; a group without one has no baseline and gives nothing.
    assert values("center", among=["greedy"]) == [0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    # Own completions alone make the baseline, which the expert is held against too.
    assert values("center", among=["policy"]) == [0.5, -0.5, 0.0, 1.0, -1.0, 6.0, 0.0]
    # The mean of the other own ones: for those outside all own ones are others.
    loo = values("center", stat="loo", among=["policy"])
    assert loo == [1.0, -1.0, 0.0, 2.0, -2.0, 6.0, 0.0]
    scaled = values("scale", stat="range", among=["policy"], epsilon=0.0, column=ask("center", among=["policy"]))
    assert scaled == [0.5, -0.5, 0.0, 0.5, -0.5, 3.0, 0.0]


def test_statistics_of_a_key():
    assert values("center", stat="max") == [0.0, -1.0, -0.5, -5.0, -7.0, 0.0, 0.0]
    assert values("center", stat="quantile", q=0.25)[:3] == pytest.approx([0.75, -0.25, 0.25])
    assert values("center", stat="median") == [0.5, -0.5, 0.0, 0.0, -2.0, 5.0, 0.0]
    # Lengths of what is trained on: the greedy completion has none, and weighs nothing.
    assert values("center", stat="len_weighted")[:3] == pytest.approx([0.6, -0.4, 0.1])
    assert values("scale", stat="range", epsilon=1.0)[:3] == [0.5, 0.0, 0.25]
    assert values("scale", stat="mad", epsilon=0.0)[3:6] == [2.0, 1.0, 4.5]
    mean = statistics.mean([4.0, 2.0, 9.0])
    assert values("scale", stat="mean", of="raw", epsilon=0.0)[3:6] == pytest.approx([r / mean for r in (4, 2, 9)])


def test_running_baselines_are_those_of_earlier_iterations():
    states = {}
    first = values("running_baseline", by="family", decay=0.75, states=states)
    means = {"sum": 4.5 / 4, "maze": 5.0}
    assert first == pytest.approx([r - means[family] for _, _, family, *_, r in PLACES])
    later = made()
    column = advantages.Column(torch.ones(7).double(), torch.ones(7).double(), torch.arange(7), "path")
    assert ask("running_baseline", later, column, states, decay=0.75).values_X.tolist() == pytest.approx(
        [1 - means[family] for _, _, family, *_ in PLACES]
    )
    assert states == json.loads(json.dumps(states))
    assert states["advantage.0"] == pytest.approx({word: 0.75 * mean + 0.25 for word, mean in means.items()})
    tokens = ask("broadcast_to_tokens")
    with pytest.raises(StepError, match="before broadcast_to_tokens"):
        ask("running_baseline", column=tokens)


def test_maps_change_every_value_by_itself():
    centred = ask("center")
    assert centred.values_X.tolist() == [0.5, -0.5, 0.0, -1.0, -3.0, 4.0, 0.0]
    assert values("power", column=centred, exponent=2.0) == [0.25, -0.25, 0.0, -1.0, -9.0, 16.0, 0.0]
    assert values("sign", column=centred) == [1.0, -1.0, 0.0, -1.0, -1.0, 1.0, 0.0]
    assert values("affine", column=centred, factor=2.0, offset=1.0) == [2.0, 0.0, 1.0, -1.0, -5.0, 9.0, 1.0]
    assert values("where", column=centred, above=-1.0, below=1.0) == [0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert values("where", column=centred, sources=["expert"]) == [0.0] * 5 + [4.0, 0.0]


def test_pass_at_k_refuses_more_than_there_are():
    with pytest.raises(StepError, match="k is 5, but a group has only 3"):
        ask("pass_at_k", k=5)


def test_decoupled_names_the_rewards():
    with pytest.raises(StepError, match="no reward 'q' in this stage; it has: r"):
        ask("decoupled", weights={"q": 1.0})


def tree():
    """A prompt, a sampled stem, and three leaves of two, one and no tokens."""
    segments = [[1, 2], [3, 4, 5], [6, 6], [7], []]
    learn = torch.tensor([False] * 2 + [True] * 6)
    owner = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])
    ids, zero = torch.arange(3), torch.zeros(3, dtype=torch.long)
    tokens = {"learn": learn, "owner": owner, "lp_behav": torch.zeros(8).double(), "broken": torch.zeros(8).bool()}
    paths = {"path": ids, "group": zero, "episode": zero, "reward": torch.tensor([1.0, 2.0, 6.0]).double()}
    return Batch(segments, [-1, 0, 1, 1, 1], [2, 3, 4], tokens, paths)


def test_shared_tokens_get_the_mean_the_maximum_or_the_owners():
    batch = tree()
    stem = {"mean": 3.0, "max": 6.0, "owner": 1.0}
    for how, shared in stem.items():
        assert values("broadcast_to_tokens", batch, tree=how) == [shared] * 3 + [1.0, 1.0, 2.0]


def test_shared_tokens_do_not_depend_on_the_order_of_paths():
    batch = tree()
    turned = batch.take([2, 0, 1])
    want = dict(
        zip(batch.packed.input_ids_M[batch.sampled_T].tolist(), values("broadcast_to_tokens", batch), strict=True)
    )
    got = dict(
        zip(turned.packed.input_ids_M[turned.sampled_T].tolist(), values("broadcast_to_tokens", turned), strict=True)
    )
    assert got == want


def test_nested_means_are_means_of_means():
    batch = with_dropped(made(), False)
    w = weighing.nested_mean(batch, levels=["group", "path"])
    lengths = {0: 2, 1: 3, 3: 1, 4: 5, 5: 2, 6: 4}
    in_group = {0: 2, 1: 3, 2: 1}
    want = {p: 1 / 3 / in_group[PLACES[p][0]] / n for p, n in lengths.items()}
    assert {p: float(w[batch.path_T == p][0]) for p in lengths} == pytest.approx(want)
    assert float(w.sum()) == pytest.approx(1.0)
    deep = weighing.nested_mean(batch, levels=["family", "group", "path"])
    assert float(deep[batch.path_T == 6][0]) == pytest.approx(1 / 2 / 2 / 1 / 4)
    one = weighing.nested_mean(batch, levels=["path"])
    torch.testing.assert_close(one, weighing.sequence_mean(batch), atol=1e-15, rtol=0)


def test_a_mean_over_turns_counts_a_turn_once_however_long_it_is():
    batch = with_dropped(made(), False)
    turn_T = torch.arange(len(batch.path_T)) // 2
    turned = batch.replaced(turn=turn_T)
    places = list(zip(batch.path_T.tolist(), turn_T.tolist(), strict=True))
    want = [1 / len(set(places)) / places.count(place) for place in places]
    assert weighing.turn_mean(turned).tolist() == pytest.approx(want, abs=1e-15)
    dropped = turned.replaced(dropped=batch.path_T == 1)
    left = [place for place in places if place[0] != 1]
    want = [0.0 if place[0] == 1 else 1 / len(set(left)) / places.count(place) for place in places]
    assert weighing.turn_mean(dropped).tolist() == pytest.approx(want, abs=1e-15)
    one = batch.replaced(turn=torch.zeros_like(turn_T))
    torch.testing.assert_close(weighing.turn_mean(one), weighing.sequence_mean(one, by="path"), atol=1e-15, rtol=0)


def test_nested_means_leave_out_or_count_what_is_dropped():
    batch = with_dropped(made(), False)
    dropped = batch.replaced(dropped=batch.path_T == 1)
    w = weighing.nested_mean(dropped, levels=["group", "path"])
    assert [float(w[batch.path_T == p].sum()) for p in (0, 1)] == pytest.approx([1 / 3, 0.0])
    w = weighing.nested_mean(dropped, levels=["group", "path"], count_dropped=True)
    assert [float(w[batch.path_T == p].sum()) for p in (0, 1)] == pytest.approx([1 / 6, 0.0])


def test_weights_by_prompt_put_its_groups_together():
    batch = with_dropped(made(), False)
    w = weighing.sequence_mean(batch, by="prompt")
    assert float(w[0]) == pytest.approx(1 / 2 / 9)
    assert math.isclose(float(w.sum()), 1.0)
