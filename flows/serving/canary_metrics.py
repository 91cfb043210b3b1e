"""What Prometheus sees of a canary: responses, feedback and scores of each arm, and the decision."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from flows.serving.canary import STATES
from flows.serving.current import Current
from flows.serving.feedback import ARMS


class CanaryCollector(Collector):
    """Reads the metrics of an endpoint's canary when they are asked for; none without a canary."""

    def __init__(self, current: Current):
        self.current = current

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        canary = self.current.canary
        if canary is None:
            return
        facts = canary.facts()
        responses = CounterMetricFamily(
            "posttrain_serve_canary_responses",
            "Responses by the model that was asked; `fallback`: the champion's in place of a failed challenger's.",
            labels=("arm", "outcome"),
        )
        for (arm, outcome), number in sorted(canary.answered.items()):
            responses.add_metric((arm, outcome), number)
        yield responses
        samples = GaugeMetricFamily("posttrain_serve_canary_samples", "Clients with feedback.", labels=("arm",))
        scores = GaugeMetricFamily("posttrain_serve_canary_score", "Mean score over clients.", labels=("arm",))
        for arm in ARMS:
            samples.add_metric((arm,), facts[arm]["samples"])
            if facts[arm]["score"] is not None:
                scores.add_metric((arm,), facts[arm]["score"])
        yield samples
        yield scores
        yield GaugeMetricFamily(
            "posttrain_serve_canary_share", "Share of clients that the challenger answers.", value=facts["share"]
        )
        states = GaugeMetricFamily("posttrain_serve_canary_state", "1 for the state of the canary.", labels=("state",))
        for state in STATES:
            states.add_metric((state,), state == facts["state"])
        yield states
        difference = GaugeMetricFamily(
            "posttrain_serve_canary_difference",
            "Score of the challenger minus the champion's at the latest look, with its bounds.",
            labels=("bound",),
        )
        for bound in ("low", "difference", "high") if facts["looks"] else ():
            difference.add_metric(("value" if bound == "difference" else bound,), facts["looks"][-1][bound])
        yield difference
