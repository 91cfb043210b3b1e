"""Rewards and references in workers of their own say what they say in the step's process."""

import re
import threading
from itertools import count

import pytest
import torch

from learning.batch.batch_layout import single_turn
from learning.lookup import bind
from learning.models.reward_model import make_reward_model
from learning.models.sharded_model import Trained
from learning.parallel.actors import Threads
from learning.parallel.pool import TRIES, Pool
from learning.rl.references import References
from learning.samples.engine_protocol import Generation
from learning.samples.sample import Sample
from learning.sampling.placed_rewards import Placed, place_rewards
from learning.sampling.sampler import score
from schemas.errors import StepError
from schemas.number_schedules import Number
from schemas.stages.rl import ReferenceSpec
from schemas.training import LoRA
from schemas.use import RewardUse

ROWS = [{"id": str(n // 3), "prompt": [{"role": "user", "content": "ab" * (n // 3 + 1)}]} for n in range(9)]
TEXTS = ["a", "bc", "cab", "a b", "bbbb", "c", "ccc", "abab", ""]
THREADS: list[int] = []


def shout(rows, completions, *, times: Number = 1.0):
    """Length, and where it was asked."""
    THREADS.append(threading.get_ident())
    return [None if not text else times * len(text) for text in completions]


def longest(rows, completions, groups):
    """1 for the longest of a group: it must see the group."""
    best = {g: max(len(t) for t, of in zip(completions, groups, strict=True) if of == g) for g in groups}
    return [float(len(t) == best[g]) for t, g in zip(completions, groups, strict=True)]


def remembering(completions, state):
    """Has a memory in the step."""
    THREADS.append(threading.get_ident())
    return [float(state.setdefault("n", 0))] * len(completions)


def exiting(rows, completions):
    """Would end its process, for some completions."""
    if "c" in completions:
        raise SystemExit(3)
    return [1.0] * len(completions)


def broken(rows, completions):
    """Raises whatever it is given."""
    raise KeyError("nothing works")


def failing(rows, completions):
    """Says what is wrong."""
    raise StepError("no ear for poetry")


def samples():
    return [
        Sample(row, int(row["id"]), "policy", [5], [6], [-1.0], "stop", text)
        for row, text in zip(ROWS, TEXTS, strict=True)
    ]


def scores(rewards, made=None):
    made = made or samples()
    score(rewards, [1.0] * len(rewards), made, {"step": 2, "seed": 3, "states": {}, "round": 0})
    return [(t.scores, t.reward) for t in made]


def bound(*uses, **inputs):
    return [bind(RewardUse.model_validate(use), f"rewards.{i}", inputs) for i, use in enumerate(uses)]


def test_a_reward_goes_where_its_role_has_workers():
    rewards = bound({"use": f"{__name__}:shout", "times": 2.0}, f"{__name__}:longest", f"{__name__}:remembering")
    assert place_rewards(rewards, None) == tuple(rewards)
    assert place_rewards(rewards, Threads({"rollout": 2})) == tuple(rewards)
    actors = Threads({"reward": 2})
    there = place_rewards(rewards, actors)
    assert [isinstance(one, Placed) for one in there] == [True, True, False]
    assert [one.each for one in there[:2]] == [True, False]
    assert [one.name for one in there] == [one.name for one in rewards]
    want = scores(rewards)
    THREADS.clear()
    assert scores(there) == want
    # Shared between two, while what has a memory stayed here.
    assert len(THREADS) == 3
    assert threading.get_ident() == THREADS[-1]
    assert threading.get_ident() not in THREADS[:2]
    actors.close()


def test_a_reward_inside_another_decides_where_it_goes():
    inner = {"use": "composite.first", "of": [f"{__name__}:longest"]}
    held = {"use": "composite.first", "of": [f"{__name__}:remembering"]}
    actors = Threads({"reward": 1})
    there = place_rewards(bound(inner, held), actors)
    assert [isinstance(one, Placed) for one in there] == [True, False]
    assert not there[0].each
    actors.close()


def test_numbers_that_follow_the_step_are_those_of_the_step():
    times = {"linear": {"from": 1.0, "to": 5.0, "steps": 4}}
    rewards = bound({"use": f"{__name__}:shout", "times": times})
    actors = Threads({"reward": 2})
    assert scores(place_rewards(rewards, actors)) == scores(rewards)
    assert scores(rewards)[1][1] == 6.0
    actors.close()


def test_what_a_reward_raises_over_there_costs_the_completion_alone_unless_it_is_all_of_them(capsys):
    actors = Threads({"reward": 2})
    wrong, exits, fails = place_rewards(
        bound(f"{__name__}:failing", f"{__name__}:exiting", f"{__name__}:broken"), actors
    )
    with pytest.raises(StepError, match=r"^no ear for poetry$"):
        scores([wrong])
    assert [one[1] for one in scores([exits])] == [1.0] * 5 + [None] + [1.0] * 3
    assert re.search(
        r"test_placed_roles:exiting: 1 of 9 completions cannot be scored: SystemExit: 3 \(test_placed_roles\.py:\d+\), "
        "for the completion 'c'",
        capsys.readouterr().err,
    )
    with pytest.raises(StepError, match=r"broken: it raises for every one of 9 completions.*KeyError.*completion 'a'"):
        scores([fails])
    actors.close()


class Deadly:
    """Ends its worker."""

    def double(self, n):
        raise SystemExit


def test_workers_that_die_of_every_question_end_the_step():
    actors = Threads({"reward": 2})
    with pytest.raises(StepError, match=f"{TRIES} times in a row without an answer"):
        Pool(actors, "reward", Deadly).map("double", [(n,) for n in range(5)])
    actors.close()


class Mortal:
    """Answers, but its first life ends at the third question; the others wait for that end."""

    births = count(1)
    ended = threading.Event()

    def __init__(self):
        self.life, self.asked = next(Mortal.births), 0

    def double(self, n):
        self.asked += 1
        if self.life == 1 and self.asked == 3:
            self.ended.set()
            raise SystemExit
        assert self.life == 1 or self.ended.wait(60)
        return 2 * n


def test_what_a_dead_worker_was_asked_another_one_answers():
    actors = Threads({"reward": 2})
    Mortal.births = count(1)
    Mortal.ended.clear()
    pool = Pool(actors, "reward", Mortal)
    assert pool.map("double", [(n,) for n in range(50)]) == [2 * n for n in range(50)]
    assert next(Mortal.births) == 4
    assert pool.map("double", []) == []
    pool.close()


def test_a_reward_model_says_the_same_in_workers(tiny_policy, tmp_path):
    judge = make_reward_model(tiny_policy, 128)
    torch.nn.init.normal_(judge.policy.model.score.weight, generator=torch.Generator().manual_seed(1))
    judge.save(tmp_path / "judge", LoRA())
    (learned,) = bound({"use": "models.learned", "model": "m"}, **{"rewards.0.model": tmp_path / "judge"})
    actors = Threads({"reward": 2})
    (there,) = place_rewards([learned], actors)
    assert there.each
    here, elsewhere = scores([learned]), scores([there])
    assert len({value for _, value in here}) == 9
    assert [value for _, value in elsewhere] == pytest.approx([value for _, value in here], abs=1e-6)
    actors.close()


class Asked:
    """An algorithm whose parts ask for two references and one that follows."""

    def needs(self, name):
        return name in ("lp_ref_T", "lp_old_T", "lp_ema_T")


class Stage:
    reference = None
    bf16 = gradient_checkpointing = False

    def __init__(self, **references):
        self.references = {name: ReferenceSpec.model_validate(spec) for name, spec in references.items()}


def test_references_in_workers_have_the_same_bits(tiny_policy, tiny_policy_folder, tmp_path):
    from learning.models.policy import save_policy

    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.mul_(0.8)
    save_policy(tiny_policy, tmp_path / "other")
    inputs = {"model": tmp_path / "other", "references.old.model": tiny_policy_folder}
    stage = Stage(old={"model": "m"}, ema={"sync_steps": 1, "mixup_alpha": 0.5})
    groups = [[Generation(list(range(5, 5 + n)), [-1.0] * n, "stop") for n in ns] for ns in ((3, 7), (2, 9), (4, 4))]
    batch = single_turn([[9, 8, 7], [4], [30, 31]], groups)
    actors = Threads({"reference": 2})
    here = References(stage, Asked(), tiny_policy, inputs)
    there = References(stage, Asked(), tiny_policy, inputs, actors)
    assert set(there.models) == {"ema"}
    for max_tokens in (8, 4096):
        how = {"max_tokens": max_tokens, "temperature": 0.7}
        made, want = (of.add_to(batch, Trained(tiny_policy.model), **how) for of in (there, here))
        for name in ("lp_ref", "lp_old", "lp_ema"):
            assert torch.equal(made.tokens[name], want.tokens[name])
        assert not torch.equal(made.tokens["lp_ref"], made.tokens["lp_old"])
    actors.close()
