"""`posttrain up` under the flow runs of a day: memory of each service, size and errors of its logs, database per run.

    python benchmarks/up_day.py [--runs 103] [--fresh-every 10] [--minutes 120] [--folder DIR]

Runs `up` in a folder of its own, deploys a recipe of two small stages, and starts one flow run after the other from the
deployment, as its form does. Every `--fresh-every`-th run has another seed, so that its steps are executed on Ray; the
others find all steps cached, as most scheduled runs do. The default is a day with one run every 14 minutes. What a day
has besides runs, the hours between them, is not simulated: services poll in them, once every two seconds. A day that
takes longer than `--minutes` ends there, with the figures of the runs that it had. Each quarter is printed at its end.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

RECIPE = """\
name: day
stages:
  first: {kind: python, function: "day:number"}
  second: {kind: python, function: "day:number", inputs: {x: first}}
"""
CODE = """\
def number(context):
    print("step", context.seed)
    (context.output("result") / "n.txt").write_text(str(context.seed))
"""
ERRORS = re.compile(r"Traceback|\b(ERROR|CRITICAL)\b|database is locked")
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
LOOK = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=103)
    parser.add_argument("--fresh-every", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps({"benchmark": "up_day", **measure_day(folder, options)}))


def measure_day(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return the figures of flow runs under one `up`; memory after the first, and then at each quarter of them."""
    runs, fresh_every = options.runs, options.fresh_every
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "day.py").write_text(CODE)
    environment = os.environ | {
        "POSTTRAIN_ROOT": str(folder),
        "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, "-m", "posttrain"]
    state, began = folder / ".posttrain", time.monotonic()
    with (folder / "up.out").open("wb") as output:
        words = [*command, "up", "--prefect-port", "0", "--mlflow-port", "0", "--limit", "1"]
        up = subprocess.Popen(words, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        api = wait_for_services(state, up)
        os.environ["PREFECT_API_URL"] = api
        subprocess.run(
            [*command, "deploy", "recipe.yaml"], cwd=folder, env=environment, check=True, capture_output=True
        )
        states, memory, before = [], [], measure_files(state)
        while len(states) < runs and time.monotonic() - began < options.minutes * 60 and "UP ENDED" not in states:
            states.append(perform_flow_run(len(states) // fresh_every if fresh_every else 0, up))
            if len(states) in {1, runs // 4, runs // 2, 3 * runs // 4, runs}:
                memory.append(look_at(state, len(states), began))
                print(json.dumps(memory[-1]), file=sys.stderr, flush=True)
        if memory[-1]["runs"] != len(states):
            memory.append(look_at(state, len(states), began))
        after = measure_files(state)
    finally:
        up.terminate()
        up.wait(120)
    logs = "".join(file.read_text(errors="replace") for file in (state / "up").glob("*.log*"))
    return {
        "flow_runs": len(states),
        "states": {name: states.count(name) for name in dict.fromkeys(states)},
        "minutes": round((time.monotonic() - began) / 60, 1),
        "looks": memory,
        "log_kb": round(after["up"] / 1e3, 1),
        "database_mb": round(after["prefect"] / 1e6, 1),
        "database_mb_per_run": round((after["prefect"] - before["prefect"]) / 1e6 / len(states), 3),
        "error_lines": sum(bool(ERRORS.search(line)) for line in logs.splitlines()),
        "restarts": (folder / "up.out").read_text(errors="replace").count("restarting in"),
    }


def look_at(state: Path, runs: int, began: float) -> dict[str, object]:
    """Return what the services take after `runs` flow runs: memory in MB, logs in kB, Prefect's database in MB."""
    files = measure_files(state)
    return {
        "runs": runs,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "memory_mb": measure_memory(state),
        "log_kb": round(files["up"] / 1e3, 1),
        "database_mb": round(files["prefect"] / 1e6, 1),
    }


def wait_for_services(state: Path, up: subprocess.Popen[bytes]) -> str:
    """Return the address of Prefect's API when all services run."""
    while not ((state / "up.json").is_file() and len(json.loads((state / "up.json").read_text()).get("pids", {})) == 5):
        if up.poll() is not None:
            raise SystemExit((state.parent / "up.out").read_text(errors="replace"))
        time.sleep(LOOK)
    return json.loads((state / "up.json").read_text())["prefect"]


def perform_flow_run(seed: int, up: subprocess.Popen[bytes]) -> str:
    """Start a flow run of the deployment and return the state in which it ended."""
    from prefect.client.orchestration import get_client  # reads its settings when imported

    with get_client(sync_client=True) as client:
        (deployment,) = client.read_deployments()
        run = client.create_flow_run_from_deployment(deployment.id, parameters={"seed": seed})
        while up.poll() is None:
            now = client.read_flow_run(run.id).state
            if now is not None and now.type.value in FINAL:
                return now.type.value
            time.sleep(LOOK)
    return "UP ENDED"


def measure_memory(state: Path) -> dict[str, float]:
    """Return the resident memory of each service with its children, flow runs excepted, in MB."""
    sizes = {}
    for name, number in json.loads((state / "up.json").read_text())["pids"].items():
        process = psutil.Process(number)
        children = [] if name in ("up", "worker") else process.children(recursive=True)
        sizes[name] = round(sum(each.memory_info().rss for each in (process, *children)) / 1e6, 1)
    return sizes


def measure_files(state: Path) -> dict[str, int]:
    """Return the bytes of the services' logs, and of Prefect's database."""
    logs, database = (state / "up").glob("*.log*"), (state / "prefect").glob("*.db*")
    return {"up": sum(f.stat().st_size for f in logs), "prefect": sum(f.stat().st_size for f in database)}


if __name__ == "__main__":
    main()
