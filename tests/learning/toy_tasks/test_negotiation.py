"""Negotiation: exact values by other formulas, perfect play, problems without overlap, the world and the turn order."""

import json
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from learning.environments.protocol import Savable
from learning.lookup import bind
from learning.samples.conversation import RoleTurn
from learning.toy_tasks.environments.negotiation import Environment
from learning.toy_tasks.negotiation import (
    Table,
    View,
    begin,
    choose_turn,
    negotiation,
    negotiation_opponent,
    negotiations,
    negotiator,
    read,
    read_view,
    solve,
)
from schemas.errors import StepError
from schemas.roles import ScriptUse, TurnOrderUse
from schemas.use import EnvUse, ProblemsUse, TeacherUse

ROLES = ["one", "two"]
GAME = View((2, 1), (3, 1), (1, 4), 2)
"""Two of the first kind and one of the second; all are worth 7 to the player who begins and 6 to the other."""


@pytest.fixture(scope="module")
def views():
    return [begin(row).view for row in negotiations(split="train", size=60, seed=3, rounds=[1, 2, 3])]


def row(view, leader=0):
    return {
        "id": "r",
        "prompt": [{"role": "user", "content": view.write()}],
        "metadata": json.dumps({"leader": leader}),
    }


def test_a_single_offer_takes_everything_and_two_leave_the_other_what_it_could_take():
    """The last offer keeps all, 1/2 of 6. So the first must leave 3 of 6: the one that is worth 4, and keeps 6 of 7."""
    assert solve(GAME.goods, GAME.mine, GAME.theirs, 1).keep == (2, 1)
    plan = solve(GAME.goods, GAME.mine, GAME.theirs, 2)
    assert (plan.keep, plan.own / 2, plan.other / 2) == ((2, 0), Fraction(6, 7), Fraction(4, 6))
    # A single thing cannot be divided: who makes the last offer would keep it, so the other gives it up before.
    assert solve((1,), (3,), (3,), 2).own == 0
    assert solve((1,), (3,), (3,), 3).own == 3
    assert solve((3,), (1,), (1,), 2) == solve((3,), (5,), (2,), 2)
    assert solve((3,), (1,), (1,), 2).keep == (1,)  # two are left: 2/3 · 1 ≥ 1/2, and one would be 1/3


def test_values_are_those_of_a_search_through_all_turns(views):
    """A minimax of its own over the game's turns, which knows nothing of plans, on what both earn."""

    def search(table):
        """Return what the player to move and the other earn."""
        view = table.view
        offers = (
            ["no"] if not view.left else [",".join(map(str, o)) for o in product(*(range(n + 1) for n in view.goods))]
        )
        results = []
        for turn in [*(["yes"] if view.offer else []), *offers]:
            after = table.move(turn)
            results.append(after if isinstance(after, tuple) else search(after)[::-1])
        return max(results)

    for view in views:
        if view.left < 3 and np.prod([n + 1 for n in view.goods]) <= 12:
            plan = solve(view.goods, view.mine, view.theirs, view.left)
            assert search(Table(view, view.left))[0] == pytest.approx(float(plan.own / view.left))


def test_no_other_turn_earns_more_before_perfect_play(views):
    """The principle of one deviation, at every view of games in which both at times move at random."""
    rng = np.random.default_rng(0)

    def finish(table, turn):
        """Return what the player to move earns with a turn and perfect play after it."""
        sign, after = 0, table.move(turn)
        while isinstance(after, Table):
            after, sign = after.move(choose_turn(after.view, rng)), 1 - sign
        return after[sign]

    seen = 0
    for view in views:
        table = Table(view, view.left)
        while isinstance(table, Table):
            shown = table.view
            best = finish(table, choose_turn(shown, rng))
            offers = (
                [",".join(map(str, o)) for o in product(*(range(n + 1) for n in shown.goods))] if shown.left else []
            )
            turns = [*offers, *(["yes"] if shown.offer else []), *([] if shown.left else ["no"])]
            assert best >= max(finish(table, turn) for turn in turns) - 1e-12
            seen += 1
            table = table.move(choose_turn(shown, rng, errors=0.7))
    assert seen > 100


def test_views_and_turns_are_read_strictly():
    offered = View((2, 1), (3, 1), (1, 4), 1, (2, 0))
    assert offered.write() == "goods 2,1 mine 3,1 theirs 1,4 left 1 they keep 2,0"
    assert read_view(offered.write()) == offered
    assert read_view(GAME.write()) == GAME
    odd = ("", "goods 2,1", GAME.write() + " ", GAME.write().replace("2,1", "2,1,1"), GAME.write().replace("2", "²"))
    odd += (offered.write().replace("2,0", "2,2"), GAME.write().replace("left 2", "left 22"))
    assert [read_view(text) for text in odd] == [None] * len(odd)
    assert [read(text, (2, 1)) for text in ("2,1", " 0,0\n", "3,0", "1", "1,1,1", "-1,1", "1,٣", "yes", "²,1")] == [
        (2, 1),
        (0, 0),
        *[None] * 7,
    ]
    for text in ("x..|...|...", offered.write(), GAME.write().replace("left 2", "left 0")):
        with pytest.raises(StepError, match="is no beginning of a game, such as goods 2,1"):
            begin({"id": "r", "prompt": [{"role": "user", "content": text}]})


def test_problems_are_held_out_up_to_order_and_rounds_and_have_their_values():
    made = {split: negotiations(split=split, size=120, seed=1) for split in ("train", "test")}

    def kinds(one):
        view = begin(one).view
        return tuple(sorted(zip(view.goods, view.mine, view.theirs, strict=True)))

    assert not {kinds(one) for one in made["train"]} & {kinds(one) for one in made["test"]}
    for one in made["train"] + made["test"]:
        view = begin(one).view
        value = json.loads(one["metadata"])["value"]
        assert (
            0
            < value
            == pytest.approx(float(solve(view.goods, view.mine, view.theirs, view.left).own / view.left), abs=1e-4)
        )
        assert one["family"] == f"negotiation{view.left}"
    assert {one["family"] for one in made["train"]} == {"negotiation2", "negotiation3"}
    both = negotiations(split="train", size=10, exchange=True)
    assert [json.loads(one["metadata"])["leader"] for one in both] == [0] * 10 + [1] * 10
    assert [one["prompt"] for one in both[:10]] == [one["prompt"] for one in both[10:]]
    assert len({one["id"] for one in both}) == 20
    with pytest.raises(StepError, match="lower `size`, or add `rounds`"):
        negotiations(split="test", size=2500, rounds=[1])


def play(said, leader=0, view=GAME):
    turns = []
    for action in said:
        turns.append(RoleTurn(negotiation(ROLES, turns, row(view, leader)).role, action))
    return negotiation(ROLES, turns, row(view, leader))


def test_two_roles_see_their_own_side_and_earn_what_they_get():
    assert (play([]).role, play([]).message) == ("one", GAME.write())
    assert (play(["2,0"]).role, play(["2,0"]).message) == ("two", "goods 2,1 mine 1,4 theirs 3,1 left 1 they keep 2,0")
    assert play([], leader=1).role == "two"
    for leader, (first, second) in ((0, ROLES), (1, ROLES[::-1])):
        assert play(["2,0", "yes"], leader).rewards == {first: pytest.approx(6 / 7), second: pytest.approx(4 / 6)}
        late = play(["2,1", "0,1", "yes"], leader).rewards
        assert late == {first: pytest.approx(6 / 7 / 2), second: pytest.approx(4 / 6 / 2)}
        assert play(["2,1", "2,1", "no"], leader).rewards == {first: 0.0, second: 0.0}
        assert play(["2,0", "maybe"], leader).rewards == {first: 0.0, second: -1.0}
        assert play(["yes"], leader).rewards == {first: -1.0, second: 0.0}  # there is no offer yet
        assert play(["2,1", "2,1", "1,1"], leader).rewards == {first: -1.0, second: 0.0}  # none may be made
    with pytest.raises(StepError, match="two roles play, not 3"):
        negotiation(["a", "b", "c"], [], row(GAME))


def test_the_script_plays_perfectly_or_makes_errors():
    rng = np.random.default_rng(0)
    assert negotiation_opponent("two", [RoleTurn("one", "2,0")], "", row(GAME), rng) == "yes"
    assert negotiation_opponent("two", [RoleTurn("one", "2,1")], "", row(GAME), rng) == "2,1"
    said = [negotiation_opponent("two", [RoleTurn("one", "2,0")], "", row(GAME), rng, errors=1.0) for _ in range(700)]
    assert len(set(said)) == 7  # six offers, and yes
    with pytest.raises(StepError, match="set that"):
        negotiation_opponent("two", [RoleTurn("one", "hello")], "", row(GAME), rng)
    with pytest.raises(StepError, match="shows no negotiation"):
        negotiator({"id": "r", "prompt": [{"role": "user", "content": "hello"}]}, rng)


def test_rewards_compare_with_the_exact_value():
    def finish(*actions):
        game, outcome = Environment().begin(row(GAME), 0), None
        for action in actions:
            outcome = game.step(action)
        return outcome

    assert finish("2,0").reward == 1.0
    assert finish("1,0").reward == pytest.approx(1 - 3 / 7)  # gave one of the first kind away
    assert finish("2,1").observation == "goods 2,1 mine 3,1 theirs 1,4 left 0 they keep 2,1"
    assert finish("2,1", "no").reward == finish("2,1", "yes").reward == pytest.approx(1 - 6 / 7)
    odd = finish("everything")
    assert (odd.reward, odd.done, odd.ok) == (0.0, True, False)


def test_the_expert_gets_the_value_from_perfect_players_and_others_less(views):
    rng = np.random.default_rng(0)

    def mean(errors, other=0.0):
        total = 0.0
        for number, view in enumerate(views):
            game, text, outcome = Environment(errors=other).begin(row(view), number), view.write(), None
            while outcome is None or not outcome.done:
                outcome = game.step(negotiator({"id": "r", "prompt": [{"content": text}]}, rng, errors=errors))
                text = outcome.observation
            total += outcome.reward
        return total / len(views)

    assert mean(0.0) == 1.0
    assert mean(1.0) < 0.75


def test_a_saved_game_goes_on_alike():
    view = View((3, 2), (2, 1), (1, 3), 4)
    world = Environment(errors=1.0)
    game, seed = next((g, s) for s in range(20) if not (g := world.begin(row(view), s)).step("3,2").done)
    assert isinstance(game, Savable)
    other = world.begin(row(view), seed)
    other.restore(json.loads(json.dumps(game.save())))
    assert other.state_name == game.state_name != view.write()
    assert other.step("2,2") == game.step("2,2")


def test_recipes_find_everything_by_name():
    problems = {"use": "negotiations", "split": "test", "size": 5}
    assert len(bind(ProblemsUse.model_validate(problems))()) == 5
    for use, kind in ((TeacherUse, "negotiator"), (ScriptUse, "negotiation_opponent")):
        assert bind(use.model_validate({"use": kind, "errors": 0.5})).options == {"errors": 0.5}
    assert bind(TurnOrderUse.model_validate("negotiation")).function is negotiation
    assert EnvUse.model_validate({"use": "negotiation", "errors": 0.1}).use == "negotiation"
