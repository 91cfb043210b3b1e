"""Names of curves in trackers: those under which users of TRL know the same numbers."""

EVALUATION = "eval_"
TRL_NAMES = {
    "completion_length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "clip_fraction": "clip_ratio/region_mean",
}
"""Metrics of posttrain to metrics of TRL 1.16 that have another name and the same meaning."""


def make_curve_name(metric: str) -> str:
    """Return the name of a metric in trackers: `loss` is `train/loss`, `eval_loss` is `eval/loss`.

    A reward by itself, `reward/NAME`, is `train/rewards/NAME/mean`, as TRL calls it.
    """
    side = "eval" if metric.startswith(EVALUATION) else "train"
    metric = metric.removeprefix(EVALUATION)
    if metric.startswith("reward/"):
        metric = f"rewards/{metric.removeprefix('reward/')}/mean"
    return f"{side}/{TRL_NAMES.get(metric, metric)}"
