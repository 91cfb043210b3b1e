"""What a run prints about rows that a training stage did not use, or not whole."""


def describe_dropped(dropped: int, rows: int, max_length: int) -> list[str]:
    """Return a sentence about rows over the length limit; none if there are none. `rows` are all, dropped or not."""
    if not dropped:
        return []
    return [
        f"{dropped} of {rows} rows ({dropped / rows:.1%}) are longer than max_length: {max_length} tokens and were "
        "dropped; raise `max_length` here and in the model's init stage, or shorten them"
    ]


def describe_cut(cut: int, rows: int, max_length: int) -> list[str]:
    """Return a sentence about rows that were truncated or split; none if there are none. `rows` are all."""
    if not cut:
        return []
    return [f"{cut} of {rows} rows ({cut / rows:.1%}) are longer than max_length: {max_length} tokens and were cut"]
