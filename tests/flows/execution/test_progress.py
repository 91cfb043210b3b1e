import io

from rich.console import Console

from flows.execution.progress import TerminalReporter, format_clock
from schemas.plan import Plan, Step


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def reporter(terminal):
    console = Console(file=io.StringIO(), width=140, force_terminal=terminal, color_system=None)
    clock = Clock()
    facts = {"kind": "sft", "settings": {}, "seed": 1, "outputs": {}, "code": {}, "key": "0", "identity": {}}
    steps = tuple(Step(name=name, stage=name, **facts) for name in ("base", "rl"))
    plan = Plan(recipe="small", file="small.yaml", steps=steps, resolved={})
    return TerminalReporter(plan, console, clock), clock, console.file


def tell(reporter, clock, events):
    for now, event in events:
        clock.now = now
        reporter.report(event)


RUN = [
    (0, {"type": "step", "step": "base", "state": "cached", "reason": "made by run r1"}),
    (0, {"type": "step", "step": "rl", "state": "running"}),
    (10, {"type": "progress", "step": "rl", "at": 100, "total": 500}),
    (20, {"type": "progress", "step": "rl", "at": 110, "total": 500, "reward": 0.25, "tokens_per_second": 12345.6}),
]


def test_the_table_knows_the_time_left_of_a_resumed_step():
    """10 steps took 10 s since the first progress: 390 more take 390 s, whatever was done before."""
    terminal, clock, _ = reporter(terminal=True)
    tell(terminal, clock, RUN)
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(terminal.table())
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines[1] == "base cached made by run r1"
    assert lines[2] == "rl running 110/500 reward 0.25 12,346 6:30 0:20"


def test_a_point_of_a_curve_without_a_total_keeps_the_total():
    terminal, clock, _ = reporter(terminal=True)
    tell(terminal, clock, [*RUN, (21, {"type": "progress", "step": "rl", "at": 111, "reward": 0.5, "loss": 9.0})])
    assert (terminal.rows["rl"].at, terminal.rows["rl"].total) == (111, 500)
    assert terminal.rows["rl"].values["reward"] == 0.5


def test_without_a_terminal_plain_lines_at_most_every_ten_seconds():
    terminal, clock, file = reporter(terminal=False)
    events = [
        *RUN,
        (21, {"type": "progress", "step": "rl", "at": 111, "total": 500}),
        (25, {"type": "log", "step": "rl", "line": "noise"}),
        (26, {"type": "run", "state": "ended"}),
        (
            65,
            {
                "type": "step",
                "step": "rl",
                "state": "done",
                "metrics": {"reward": 0.75},
                "gates": "gate failed: accuracy",
            },
        ),
    ]
    with terminal:
        tell(terminal, clock, events)
    assert file.getvalue().splitlines() == [
        "base: cached (made by run r1)",
        "rl: running",
        "rl: 100/500",
        "rl: 110/500, reward 0.25, 12,346 tokens/s, 6:30 left",
        "rl: done in 1:05 (gate failed: accuracy)",
    ]


def test_a_retry_starts_its_own_clock_and_says_why():
    terminal, clock, file = reporter(terminal=False)
    tell(terminal, clock, [*RUN, (30, {"type": "retry", "step": "rl", "attempt": 2, "reason": "[out of memory]"})])
    assert file.getvalue().splitlines()[-1] == "rl: try 2: [out of memory]"
    assert terminal.rows["rl"].first is None


def test_the_live_table_is_drawn_and_left_on_the_screen():
    terminal, clock, file = reporter(terminal=True)
    with terminal:
        tell(terminal, clock, RUN)
    assert "110/500" in file.getvalue()


def test_clock_text():
    assert [format_clock(s) for s in (0, 7.4, 59.6, 723, 3723)] == ["0:00", "0:07", "1:00", "12:03", "1:02:03"]
