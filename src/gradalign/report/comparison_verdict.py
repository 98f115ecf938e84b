"""What a comparison says of each method and task, in words."""

from __future__ import annotations

from gradalign.report.comparison_files import BASELINE, Compared, ComparisonFiles
from gradalign.report.metric_names import better, decimals, title
from gradalign.report.numbers import PERCENT, as_number, as_p, as_percent, as_signed

__all__ = ["SIGNIFICANT", "difference_in_words", "method_verdict"]

SIGNIFICANT = 0.05


def method_verdict(found: ComparisonFiles, method: str) -> list[tuple[str, str]]:
    """Return what is said of a method against the plain sum: (task, sentences), and at the end ("", sentence).

    Of a task's metrics the first one, AUC as a rule, is said whatever came out; of the others those that differ.
    """
    said = []
    for task in found.tasks:
        rows = [row for metric in found.metrics(task) if (row := found.row(method, task, metric)) is not None]
        rows = [row for row in rows if row.difference is not None]
        if not rows:
            said.append((task, "nothing to compare."))
            continue
        first, others = rows[0], rows[1:]
        sentences = [difference_in_words(row) for row in (first, *(row for row in others if _is_told_apart(row)))]
        if untold := [title(row.metric) for row in others if not _is_told_apart(row)]:
            sentences.append(f"In {_listed(untold)} no difference can be told from {_seeds(first)}.")
        said.append((task, " ".join(sentences)))
    return [*said, *(("", sentence) for sentence in (*_probe(found, method), *_cost(found, method)))]


def difference_in_words(row: Compared) -> str:
    r"""Return a row of a comparison as a sentence.

    Example:
        >>> row = Compared("adversarial", "buy", "auc", 5, 0.75, 0.001, 0.0023, 0.0011, 0.0035, 0.004, 0.012)
        >>> difference_in_words(row)
        'AUC higher by 0.0023, which is better: 95\xa0% interval +0.0011 to +0.0035, p corrected 0.012.'
        >>> import dataclasses
        >>> difference_in_words(dataclasses.replace(row, low=-0.001, p_corrected=0.4))
        'no difference in AUC can be told from 5 seeds: +0.0023, 95\xa0% interval -0.0010 to ...'
    """
    name, d = title(row.metric), row.difference
    if d is None:
        return f"{name} has no difference to the plain sum."
    if row.low is None or row.high is None:
        by = as_signed(d, decimals(row.metric, None))
        return f"{name} differs by {by}; without an interval nothing can be told ({_seeds(row)})."
    digits = decimals(row.metric, (row.high - row.low) / 2)
    interval = f"95{PERCENT} interval {as_signed(row.low, digits)} to {as_signed(row.high, digits)}"
    corrected = f"p corrected {as_p(row.p_corrected)}"
    way, judged = "higher" if d > 0 else "lower", better(row.metric, d)
    by = f"{name} {way} by {as_number(abs(d), digits)}" + (f", which is {judged}" if judged else "")
    if _is_told_apart(row):
        return f"{by}: {interval}, {corrected}."
    if row.low > 0 or row.high < 0:
        return (
            f"{by}: {interval}, but {corrected} for the number of comparisons, so {_seeds(row)} are not enough to tell."
        )
    return f"no difference in {name} can be told from {_seeds(row)}: {as_signed(d, digits)}, {interval}, {corrected}."


def _is_told_apart(row: Compared) -> bool:
    is_off_zero = row.low is not None and row.high is not None and (row.low > 0 or row.high < 0)
    return is_off_zero and row.p_corrected is not None and row.p_corrected < SIGNIFICANT


def _seeds(row: Compared) -> str:
    return f"{row.seeds} seed{'' if row.seeds == 1 else 's'}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _probe(found: ComparisonFiles, method: str) -> list[str]:
    row, plain = (found.row(m, "", "probe_accuracy") for m in (method, BASELINE))
    if row is None or row.mean is None:
        return []
    blind, aware = found.chances(method)
    against = [f"the labels alone give away {as_percent(aware)}"] if aware is not None else []
    against += [f"a blind guess names {as_percent(blind)}"] if blind is not None else []
    against += [f"it names {as_percent(plain.mean)} under the plain sum"] if plain and plain.mean is not None else []
    said = f"A fresh probe names the task of {as_percent(row.mean)} of the gradients"
    if against:
        said += f", where {_listed(against)}"
    if row.difference is not None and row.low is not None:
        return [f"{said}; {difference_in_words(row)}"]
    return [f"{said}."]


def _cost(found: ComparisonFiles, method: str) -> list[str]:
    said = []
    for metric, what in (("seconds", "time"), ("memory_mb", "memory")):
        row, plain = (found.row(m, "", metric) for m in (method, BASELINE))
        if row and plain and row.mean is not None and plain.mean:
            said.append(f"{as_number(row.mean / plain.mean, 2)} times the {what}")
    return [f"It takes {_listed(said)} of the plain sum."] if said else []
