"""Opens the record of a step in a tracker; the library of a tracker is imported here, when it is used."""

from lineage.layout import Layout
from lineage.tracking.curve_sinks import CurveSink
from schemas.plan import Step
from schemas.trackers import Tracker


def open_sink(tracker: Tracker, layout: Layout, recipe: str, run: str, step: Step) -> CurveSink:
    """Return a new record of a step in a tracker other than MLflow."""
    layout.make_state()
    if tracker == "tensorboard":
        from lineage.tracking.tensorboard_sink import TensorBoardSink as Sink  # imports its library
    elif tracker == "trackio":
        from lineage.tracking.trackio_sink import TrackioSink as Sink  # imports its library
    else:
        from lineage.tracking.wandb_sink import WandbSink as Sink  # imports its library
    return Sink(layout, recipe, run, step)
