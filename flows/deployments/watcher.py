"""Start deployed recipes when their watched sources change, mark their dead flow runs, and watch the registry."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import emit_event
from prefect.states import Scheduled

from flows.deployments.automations import AutomationSetup
from flows.deployments.dead_runs import MESSAGE, mark_crashed
from flows.deployments.prefect_deployments import list_deployments
from flows.deployments.registry_watch import EVENT, Receivers, RegistryWatch
from flows.deployments.watching import Change, Watch
from lineage.audit.log import append
from lineage.layout import Layout
from lineage.sources.watched import digest_source, stat_source
from schemas.errors import PosttrainError
from schemas.recipe.load import load_recipe
from schemas.schedule import Schedule

LOOK = 2.0
"""Seconds between looks at the sources; a change is reported when two looks agree."""
REFRESH = 10.0
"""Seconds between looks at the deployments and their recipes."""
TAG = "on-change"
"""Tag of the flow runs that a change started."""


class Watcher:
    """Watches the sources of every deployed recipe of a checkout on one server."""

    def __init__(self, layout: Layout, say: Callable[[str], None]):
        self.layout, self.say = layout, say
        self.watches: dict[UUID, Watch] = {}
        self.registry = RegistryWatch(layout, _emit_registry_event, say)
        self.receivers: Receivers = {}
        self.automations = AutomationSetup(say)
        self.printed: dict[str, str] = {}
        """Current errors by their source; each is printed once."""

    def refresh(self, client: SyncPrefectClient) -> None:
        """Read the deployments and what their recipes watch now; mark flow runs that died."""
        with self.forgiving("automations"):
            self.automations.look(client)
        watches = {}
        receivers: Receivers = {}
        ours = list_deployments(client, self.layout)
        for run in mark_crashed(client, [deployment.id for deployment in ours]):
            append(self.layout, "flow run found dead", flow_run=str(run.id), name=run.name)
            self.say(f"{run.name}: {MESSAGE}")
        for deployment in ours:
            schedule, file = self._schedule(deployment, receivers)
            if schedule is None or not schedule.active or deployment.paused or not schedule.on_change:
                continue
            before = self.watches.get(deployment.id)
            if before is None or list(before.sources) != schedule.on_change:
                before = self._watch(deployment, schedule, file)
                self.say(f"{deployment.name}: waits for changes of {', '.join(schedule.on_change)}")
            watches[deployment.id] = before
        self.watches, self.receivers = watches, receivers

    def look(self, client: SyncPrefectClient) -> None:
        """Check every source once and start the recipes of what changed."""
        for deployment, watch in self.watches.items():
            with self.forgiving(watch.file.stem):
                watch.look(partial(self._start, client, deployment))
        with self.forgiving("registry"):
            self.registry.look(self.receivers)

    def _watch(self, deployment: DeploymentResponse, schedule: Schedule, file: Path) -> Watch:
        folders = tuple(dict.fromkeys((file.parent, self.layout.root)))
        return Watch(
            self.layout.state / "watch" / f"{deployment.name}.json",
            schedule.on_change,
            partial(stat_source, layout=self.layout, folders=folders),
            partial(digest_source, layout=self.layout, folders=folders),
        )

    def _schedule(
        self, deployment: DeploymentResponse, receivers: Receivers | None = None
    ) -> tuple[Schedule | None, Path]:
        """Return schedule and file of a deployment's recipe, and add where its messages go to `receivers`."""
        file = (self.layout.root / deployment.parameters["recipe"]).resolve()
        with self.forgiving(deployment.name):
            recipe = load_recipe(file)
            if receivers is not None and recipe.head.promote is not None:
                receivers.setdefault(recipe.head.promote.name or recipe.name, []).extend(recipe.head.notify)
            return recipe.head.schedule, file
        watch = self.watches.get(deployment.id)
        return (Schedule(on_change=list(watch.sources)) if watch else None), file

    def _start(self, client: SyncPrefectClient, deployment: UUID, changes: list[Change], key: str) -> None:
        what = "; ".join(map(str, changes))
        there = client.read_deployment(deployment)
        schedule, _ = self._schedule(there)
        profile = {"profile": schedule.profile} if schedule and schedule.profile else {}
        run = client.create_flow_run_from_deployment(
            deployment,
            idempotency_key=key,
            parameters=profile,
            tags=[TAG, *(change.source for change in changes)],
            state=Scheduled(scheduled_time=datetime.now(UTC), message=f"changed: {what}"),
        )
        facts = [{"source": c.source, "before": c.before, "after": c.after} for c in changes]
        append(self.layout, "started by a change", deployment=there.name, flow_run=str(run.id), changes=facts)
        self.say(f"{there.name}: {what}; started {run.name}")

    @contextlib.contextmanager
    def forgiving(self, who: str) -> Iterator[None]:
        """Print an error once and continue: a server that is down is polled again, and a change is detected later."""
        try:
            yield
            self.printed.pop(who, None)
        except Exception as error:
            message = str(error) if isinstance(error, PosttrainError) else f"{type(error).__name__}: {error}"
            if self.printed.get(who) != message:
                self.say(f"{who}: {message}")
            self.printed[who] = message


def _emit_registry_event(name: str, lines: list[str]) -> None:
    resource = {"prefect.resource.id": f"posttrain.registered-model.{name}", "prefect.resource.name": name}
    emit_event(EVENT, resource, payload={"changes": lines, "text": f"registry, {name}: {'; '.join(lines)}"})


def main() -> None:
    """Watch until SIGTERM or Ctrl-C; retry if the server does not answer."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    watcher = Watcher(Layout.find(), lambda text: print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True))
    refreshed = -REFRESH
    with get_client(sync_client=True) as client:
        while not stop.wait(LOOK):
            with watcher.forgiving("server"):
                if time.monotonic() - refreshed >= REFRESH:
                    watcher.refresh(client)
                    refreshed = time.monotonic()
                watcher.look(client)


if __name__ == "__main__":
    main()
