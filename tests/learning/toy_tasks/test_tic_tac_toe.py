"""Tic-tac-toe: exact values of all positions, perfect play, problems without overlap, the world and the turn order."""

import json
from collections import Counter

import numpy as np
import pytest

from learning.environments.protocol import Savable
from learning.lookup import bind
from learning.samples.conversation import RoleTurn
from learning.toy_tasks.environments.tic_tac_toe import Environment
from learning.toy_tasks.tic_tac_toe import (
    START,
    choose_move,
    compute_value,
    find_best,
    find_canonical,
    find_result,
    find_side,
    get_board,
    list_moves,
    list_positions,
    make_move,
    read_board,
    read_move,
    tic_tac_toe,
    tic_tac_toe_opponent,
    tic_tac_toe_player,
    tic_tac_toe_positions,
    write_board,
)
from schemas.errors import StepError
from schemas.roles import ScriptUse, TurnOrderUse
from schemas.use import EnvUse, ProblemsUse, TeacherUse

ROLES = ["one", "two"]


@pytest.fixture(scope="module")
def positions():
    return list_positions()


def row(board, leader=0):
    return {
        "id": board,
        "prompt": [{"role": "user", "content": write_board(board)}],
        "metadata": json.dumps({"leader": leader}),
    }


def test_the_game_has_its_known_numbers(positions):
    assert len(positions) == len(set(positions)) == 5478
    assert Counter(9 - board.count(".") for board in positions) == {
        0: 1,
        1: 9,
        2: 72,
        3: 252,
        4: 756,
        5: 1260,
        6: 1520,
        7: 1140,
        8: 390,
        9: 78,
    }
    assert Counter(find_result(board) for board in positions) == {None: 4520, 1: 626, -1: 316, 0: 16}
    assert len({find_canonical(board) for board in positions}) == 765


def test_the_game_is_a_draw_and_every_first_move_keeps_it():
    assert compute_value(START) == 0
    assert find_best(START) == list(range(9))
    # After a corner only the centre holds; after the centre only corners.
    assert find_best(make_move(START, 0)) == [4]
    assert find_best(make_move(START, 4)) == [0, 2, 6, 8]


def test_values_are_those_of_a_search_of_its_own(positions):
    def negamax(board, side):
        won = any(all(board[i] == "xo"[1 - side] for i in line) for line in WINS)
        if won or "." not in board:
            return -1 if won else 0
        return max(-negamax(board[:i] + "xo"[side] + board[i + 1 :], 1 - side) for i in range(9) if board[i] == ".")

    WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    late = [board for board in positions if board.count(".") <= 4]
    assert [compute_value(board) for board in late] == [
        negamax(board, int(board.count("x") > board.count("o"))) for board in late
    ]


@pytest.mark.parametrize("side", [0, 1])
def test_perfect_play_never_loses_whatever_the_other_does(side):
    """All games of a perfect player (its first best move) against every move of the other."""

    def worst(board):
        result = find_result(board)
        if result is not None:
            return result if side == 0 else -result
        moves = find_best(board)[:1] if find_side(board) == "xo"[side] else list_moves(board)
        return min(worst(make_move(board, cell)) for cell in moves)

    assert worst(START) == 0


def test_boards_and_moves_are_read_strictly():
    assert write_board("x...o...x") == "x..|.o.|..x"
    assert read_board("x..|.o.|..x") == "x...o...x"
    for text in ("x...o...x", "x..|.o.|..", "x..|.x.|..x", "o..|...|...", "x..|.o.|..z", "x..|.o.|..x|"):
        assert read_board(text) is None
    board = "x...o...."
    assert [read_move(text, board) for text in ("2", " 9\n", "1", "0", "10", "", "²", "two", "٣")] == [
        1,
        8,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
    ]
    for odd in ("xxx|oo.|...", "nothing", "xox|oxo|oxo"):
        with pytest.raises(StepError, match="is no open position"):
            get_board({"id": "r", "prompt": [{"role": "user", "content": odd}]})


def test_problems_are_held_out_up_to_turning_and_have_their_values():
    made = {split: tic_tac_toe_positions(split=split, size=80, seed=1) for split in ("train", "test")}
    forms = {split: {find_canonical(get_board(one)) for one in rows} for split, rows in made.items()}
    assert not forms["train"] & forms["test"]
    for one in made["train"] + made["test"]:
        about = json.loads(one["metadata"])
        assert about["value"] == compute_value(about["board"]) >= 0
        assert one["answer"] == str(about["value"])
        assert 9 - about["board"].count(".") in (2, 3, 4)
    assert len({one["id"] for one in made["train"]}) == 80
    assert {json.loads(one["metadata"])["value"] for one in made["train"]} == {0, 1}
    # The difficulty: the longest game that is left.
    (empty,) = tic_tac_toe_positions(split="train", size=1, moves=[0])
    assert get_board(empty) == START
    both = tic_tac_toe_positions(split="train", size=20, moves=[6, 7], exchange=True)
    assert [json.loads(one["metadata"])["leader"] for one in both] == [0] * 20 + [1] * 20
    assert [one["prompt"] for one in both[:20]] == [one["prompt"] for one in both[20:]]
    assert len({one["id"] for one in both}) == 40
    with pytest.raises(StepError, match="lower `size`"):
        tic_tac_toe_positions(split="train", size=9, moves=[0])


def play(board, actions, leader=0):
    turns = []
    for action in actions:
        turns.append(RoleTurn(tic_tac_toe(ROLES, turns, row(board, leader)).role, action))
    return tic_tac_toe(ROLES, turns, row(board, leader))


def test_two_roles_play_in_turn_and_earn_opposite_rewards():
    assert [play(START, said).role for said in ("", "5", "51")] == ["one", "two", "one"]
    assert play(START, "51").message == "o..|.x.|..."
    assert play(START, "", leader=1).role == "two"
    for leader, (winner, loser) in ((0, ROLES), (1, ROLES[::-1])):
        assert play(START, "14253", leader).rewards == {winner: 1.0, loser: -1.0}
        assert play(START, "14257", leader).rewards == {}
        assert play(START, "142596", leader).rewards == {winner: -1.0, loser: 1.0}
        assert play(START, "152374689", leader).rewards == {winner: 0.0, loser: 0.0}
        assert play(START, ["5", "5"], leader).rewards == {winner: 1.0, loser: -1.0}  # an occupied cell loses
    # o is to move in this position, and the role that moves first wins with it.
    assert play("xx.oo.x..", "6").rewards == {"one": 1.0, "two": -1.0}
    with pytest.raises(StepError, match="two roles play, not 3"):
        tic_tac_toe(["a", "b", "c"], [], row(START))


def test_the_script_plays_perfectly_or_makes_errors():
    rng = np.random.default_rng(0)
    turns = [RoleTurn("one", "1")]
    assert {tic_tac_toe_opponent("two", turns, "", row(START), rng) for _ in range(20)} == {"5"}
    said = [tic_tac_toe_opponent("two", turns, "", row(START), rng, errors=0.5) for _ in range(800)]
    assert said.count("5") / 800 == pytest.approx(0.5 + 0.5 / 8, abs=0.06)
    with pytest.raises(StepError, match="set that"):
        tic_tac_toe_opponent("two", [RoleTurn("one", "pass")], "", row(START), rng)


def finish(world, board, actions, seed=0):
    game, outcome = world.begin(row(board), seed), None
    for action in actions:
        outcome = game.step(action)
    return outcome


def test_rewards_compare_with_the_exact_value():
    world = Environment()
    assert finish(world, "xx.oo....", "3").reward == 1.0  # won
    assert finish(world, "xx.oo....", "9").reward == 0.0  # lost where a win was there
    odd = finish(world, "xx.oo....", "1")
    assert (odd.reward, odd.done, odd.ok) == (0.0, True, False)
    assert compute_value("x...o....") == 0
    assert finish(world, "x...o....", "?").reward == 0.5  # lost a draw
    # The answer to a fork that was missed: x could win, and draws.
    assert finish(Environment(), "x.o......", "2").done is False


def test_against_a_perfect_player_the_expert_gets_exactly_the_value_from_every_position(positions):
    world, rng = Environment(), np.random.default_rng(0)
    for board in [one for one in positions if list_moves(one)][::7]:
        game, text = world.begin(row(board), 0), write_board(board)
        while True:
            outcome = game.step(tic_tac_toe_player({"id": "r", "prompt": [{"content": text}]}, rng))
            if outcome.done:
                break
            text = outcome.observation
        assert outcome.reward == 1.0


def test_a_player_who_errs_falls_short_and_an_opponent_who_errs_is_easier():
    rng, boards = np.random.default_rng(0), [get_board(one) for one in tic_tac_toe_positions(split="train", size=150)]

    def mean(world, errors):
        total = 0.0
        for number, board in enumerate(boards):
            game, outcome = world.begin(row(board), number), None
            while outcome is None or not outcome.done:
                outcome = game.step(choose_move(game.board, rng, errors))
            total += outcome.reward
        return total / len(boards)

    perfect, random = mean(Environment(), 0.0), mean(Environment(), 1.0)
    assert perfect == 1.0
    assert 0.3 < random < 0.75
    assert mean(Environment(errors=1.0), 1.0) > random + 0.1


def test_a_saved_game_goes_on_alike():
    world = Environment(errors=1.0)
    game = world.begin(row(START), 5)
    game.step("5")
    other = world.begin(row(START), 5)
    assert isinstance(game, Savable)
    other.restore(json.loads(json.dumps(game.save())))
    free = [str(cell + 1) for cell in list_moves(game.board)]
    assert other.state_name == game.state_name
    assert other.step(free[0]) == game.step(free[0])
    replies = set()
    for seed in range(20):
        fresh = world.begin(row(START), seed)
        replies.add(fresh.step("5").observation)
    assert len(replies) > 4


def test_recipes_find_everything_by_name():
    problems = {"use": "tic_tac_toe_positions", "split": "test", "size": 5}
    assert len(bind(ProblemsUse.model_validate(problems))()) == 5
    for use, kind in ((TeacherUse, "tic_tac_toe_player"), (ScriptUse, "tic_tac_toe_opponent")):
        assert bind(use.model_validate({"use": kind, "errors": 0.5})).options == {"errors": 0.5}
    assert bind(TurnOrderUse.model_validate("tic_tac_toe")).function is tic_tac_toe
    assert EnvUse.model_validate({"use": "tic_tac_toe", "errors": 0.1}).use == "tic_tac_toe"
