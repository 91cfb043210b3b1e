import json

import pytest

from lineage.catalogue.sql_view import TABLES, QueryError, query


def test_tables_hold_what_the_manifests_say(small_run):
    layout = small_run.layout
    assert query(layout, "select step from steps order by started").column("step").to_pylist() == list(small_run.made)
    edges = query(layout, "select from_step, port from inputs where step = 'tuned' order by port").to_pylist()
    assert edges == [{"from_step": "lessons_clean", "port": "data"}, {"from_step": "base", "port": "model"}]
    numbers = query(layout, "select metric, value, text from metrics where step = 'tuned' order by metric").to_pylist()
    assert [tuple(n.values()) for n in numbers] == [
        ("converged", 1.0, None),
        ("loss", 0.25, None),
        ("note", None, "fine"),
    ]
    sizes = query(
        layout,
        "select o.bytes, sum(f.size)::bigint as total, o.files from outputs o "
        "join files f using (key, output) "
        "where o.step = 'base' group by all",
    ).to_pylist()
    assert sizes == [{"bytes": 4, "total": 4, "files": 2}]
    rows = query(layout, "select settings->>'learning_rate' as rate from steps where step = 'tuned'").to_pylist()
    assert rows == [{"rate": "0.1"}]


def test_curves_are_long_and_a_line_cut_off_by_a_kill_is_left_out(small_run):
    folder = small_run.store.folder(small_run.made["tuned"])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "los')
    curve = query(small_run.layout, "select at_step, figure, value from curves order by at_step").to_pylist()
    assert [tuple(point.values()) for point in curve] == [(1, "loss", 1.0), (2, "loss", 0.5), (4, "loss", 0.25)]


def test_rows_of_all_artifacts_know_where_they_lie(small_run):
    rows = query(
        small_run.layout, "select step, list(id order by id) ids from rows group by step order by step"
    ).to_pylist()
    assert rows == [{"step": "lessons", "ids": ["a", "b", "c"]}, {"step": "lessons_clean", "ids": ["a", "c"]}]
    lost = query(small_run.layout, "select step, id, reason from dropped").to_pylist()
    assert lost == [{"step": "lessons_clean", "id": "b", "reason": "contaminated"}]


def test_a_column_called_step_does_not_hide_the_step(small_run):
    small_run.make(
        "rl", "rl", {"samples": {"trajectories.parquet": [{"step": 3, "reward": 0.5}]}}, {"samples": "trajectories"}
    )
    rows = query(small_run.layout, "select step, output, at_step, reward from trajectories").to_pylist()
    assert rows == [{"step": "rl", "output": "samples", "at_step": 3, "reward": 0.5}]


def test_events_of_runs(small_run):
    folder = small_run.layout.run("run-1")
    folder.mkdir(parents=True)
    events = [{"type": "step", "step": "base", "state": "done"}, {"type": "end"}]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = query(small_run.layout, "select run, number, state from events order by number").to_pylist()
    assert rows == [{"run": "run-1", "number": 0, "state": "done"}, {"run": "run-1", "number": 1, "state": None}]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_can_be_read_from_an_empty_store(maker, table):
    assert query(maker.layout, f"select * from {table}").num_rows == 0


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('/etc/hostname')",
        "select * from '{root}/secret.parquet'",
        "copy (select 1) to '{root}/out.csv'",
        "attach '{root}/x.db'",
        "install httpfs",
        "set enable_external_access = true",
        "select 1; select 2",
        "drop table steps",
        "selekt 1",
        "select * from stepz",
        "",
    ],
)
def test_what_is_not_a_read_of_the_tables_is_refused_with_a_message(small_run, sql):
    root = small_run.layout.root
    before = sorted(root.iterdir())
    with pytest.raises(QueryError, match="query: "):
        query(small_run.layout, sql.format(root=root))
    assert sorted(root.iterdir()) == before
