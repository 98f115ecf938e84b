"""A fresh probe of a trained model: can a new classifier tell which task a gradient comes from?

The discriminator of an adversarial alignment and the model have learnt against each other, so its accuracy may be at
chance although another classifier would tell the tasks apart. The probe is trained after the model, on its frozen task
gradients, and judged on rows that neither has seen.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gradalign.diagnostics.gradient_distances import sliced_wasserstein, squared_mmd
from gradalign.diagnostics.gradient_picture import two_dimensions
from gradalign.diagnostics.gradient_rows import GradientRows, gradient_rows, number_of_rows, take_rows
from gradalign.diagnostics.probe_classifier import label_aware_chance, named_tasks, resampled_accuracy
from gradalign.diagnostics.probe_report import Distance, ProbeReport
from gradalign.errors import UserError, nearest
from gradalign.gradients.normalization import METHODS
from gradalign.tasks import losses_by_task

__all__ = ["probe"]

CONFIDENCE = 0.95
_STOPPING_SHARE = 0.2  # of the rows that are not for the test
_FEWEST = 5  # gradients of a task in each of the three parts
_FEWEST_ROWS = 30
_DISTANCE_ROWS, _PICTURE_ROWS = 1000, 500
_SHUFFLES = 5


def probe(
    model: Any,
    data: Any,
    *,
    normalize: str | None = None,
    sign_free: bool | None = None,
    tasks: list[str] | None = None,
    rows: int = 10_000,
    test_share: float = 0.5,
    resamples: int = 1000,
    batch_size: int = 1024,
    seed: int = 0,
    initial: Any = None,
) -> ProbeReport:
    """Train a new classifier on the frozen model's task gradients, and judge it on rows that it has not seen.

    Args:
        model: a compiled `gradalign.MultiTaskModel` that knows its shared tensor, with or without an alignment.
        data: `(x, y)` or `(x, y, sample_weight)`, arrays as `fit` takes them: rows that the model was not trained on.
        normalize: "l2", "batch" or "none", see `gradalign.gradients.normalize`; "batch" takes a task's scale, one
            number, from all rows that are used. Default: what the alignment does, "batch" without one.
        sign_free: turn the gradients of positive labels round; for tasks with one output. Default: what the alignment
            does, False without one.
        tasks: names of the tasks to tell apart, two or more. Default: those that the alignment aligns, all without one.
        rows: of the data, drawn at random, that are used at most.
        test_share: of these rows, on which the classifier is judged; the others train it. Between 0 and 1.
        resamples: of the bootstrap behind the interval.
        batch_size: rows of a forward pass.
        seed: of the split, the classifier and what else is drawn.
        initial: the model as it was before training, compiled; the picture then shows the gradients of the same rows at
            its weights too, in the same coordinates. None shows the trained model alone.

    Returns:
        A report: balanced accuracy with its 95 % interval, blind and label-aware chance, distances between the tasks'
        gradients, points for a picture; `str()` of it is a table with a verdict. The model is not changed.

    Raises:
        UserError: for a model without losses or shared tensor, fewer than two tasks, tasks with too few gradients,
            and an `initial` whose gradients have another width.

    Example:
        >>> import keras
        >>> x = keras.Input((4,), name="x")
        >>> s = keras.layers.Dense(3, activation="gelu", name="encoder")(x)
        >>> base = keras.Model(x, {t: keras.layers.Dense(1, "sigmoid", name=t)(s) for t in ("click", "buy")})
        >>> from gradalign import MultiTaskModel
        >>> model = MultiTaskModel(base, "encoder")
        >>> model.compile("adam", loss="binary_crossentropy")
        >>> draw = np.random.default_rng(0)
        >>> labels = {"click": draw.integers(0, 2, 200), "buy": draw.integers(0, 2, 200)}
        >>> report = probe(model, (draw.normal(size=(200, 4)).astype("float32"), labels))
        >>> report.accuracy > report.label_aware_chance  # one linear head a task: two directions
        True
    """
    normalize, sign_free, tasks = _settings(model, data, normalize, sign_free, tasks)
    for name, value, least in (
        ("rows", rows, _FEWEST_ROWS),
        ("resamples", resamples, 1),
        ("batch_size", batch_size, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise UserError(f"{name} is a whole number, {least} or more; received {value!r}.")
    if isinstance(test_share, bool) or not 0.0 < test_share < 1.0:
        raise UserError(f"test_share is a share of the rows, between 0 and 1; received {test_share!r}.")
    random = np.random.RandomState(seed)
    chosen = random.permutation(number_of_rows(data))[:rows]
    per = "row" if model.alignment is None else model.alignment.per
    used = take_rows(data, chosen)
    found = gradient_rows(model, used, tasks, per, batch_size)
    if sign_free and (several := [task for task, width in found.outputs.items() if width > 1]):
        raise UserError(f'sign_free is for tasks with one output; "{several[0]}" has {found.outputs[several[0]]}.')
    parts = _split(found, test_share)
    kept = np.stack([found.kept[task] for task in tasks])
    normalized = found.normalized(normalize, sign_free=sign_free)
    named = named_tasks(np.stack([normalized[task] for task in tasks]), kept, parts, seed)
    test = parts["test"]
    right, counted = named == np.arange(len(tasks))[:, None], kept[:, test]
    by_task = {task: float(right[t][counted[t]].mean()) for t, task in enumerate(tasks)}
    codes = np.stack([found.codes[task][test] for task in tasks])
    before = None
    if initial is not None:
        before = gradient_rows(initial, used, tasks, per, batch_size).normalized(normalize, sign_free=sign_free)
    points, initial_points, variances = _picture(_first(normalized, found, test, _PICTURE_ROWS), before)
    return ProbeReport(
        accuracy=float(np.mean(list(by_task.values()))),
        interval=resampled_accuracy(right, counted, CONFIDENCE, resamples, random),
        confidence=CONFIDENCE,
        accuracy_by_task=by_task,
        chance=1.0 / len(tasks),
        label_aware_chance=1.0 / len(tasks) if sign_free else label_aware_chance(codes, counted),
        gradients={task: int(counted[t].sum()) for t, task in enumerate(tasks)},
        rows={name: len(of_part) for name, of_part in parts.items()},
        distances=_distances(normalized, found, test, random),
        normalize=normalize,
        sign_free=sign_free,
        seed=seed,
        points=points,
        initial_points=initial_points,
        variances=variances,
    )


def _settings(
    model: Any, data: Any, normalize: str | None, sign_free: bool | None, tasks: list[str] | None
) -> tuple[str, bool, list[str]]:
    alignment = getattr(model, "alignment", None)
    if not getattr(model, "shared", None):
        raise UserError(
            "The probe needs a MultiTaskModel that knows where the shared tensor is: name its layer, as in "
            'MultiTaskModel(base, shared="encoder").'
        )
    if not model.compiled:
        raise UserError("The probe needs a compiled model: it looks at the gradients of its losses.")
    model.make_ready_for(
        take_rows(data, np.arange(min(2, number_of_rows(data))))
    )  # a base may wait for its first batch
    if normalize is None:
        normalize = "batch" if alignment is None else str(alignment.normalize)
    if normalize not in METHODS:
        raise UserError(f"normalize is one of {', '.join(map(repr, METHODS))}; received {normalize!r}.")
    if sign_free is None:
        sign_free = alignment is not None and bool(alignment.sign_free)
    trained = list(losses_by_task(model.loss, model.tasks, []))
    if tasks is None:
        tasks = trained if alignment is None else list(alignment.aligned_tasks)
    for task in tasks:
        if task not in trained:
            raise UserError(
                f'There is no task "{task}" with a loss; those are {", ".join(trained)}.{nearest(str(task), trained)}'
            )
    if len(set(tasks)) < 2:
        raise UserError(f"The probe tells tasks apart, two or more; received {', '.join(tasks) or 'none'}.")
    return normalize, sign_free, tasks


def _split(found: GradientRows, test_share: float) -> dict[str, np.ndarray]:
    """Numbers of the rows to fit on, to stop by and to test on; the rows are in random order already."""
    rows = np.flatnonzero(np.any(list(found.kept.values()), axis=0))
    test = round(test_share * len(rows))
    stop = test + round(_STOPPING_SHARE * (len(rows) - test))
    parts = {"fit": rows[stop:], "stop": rows[test:stop], "test": rows[:test]}
    for task, kept in found.kept.items():
        fewest = min(int(kept[part].sum()) for part in parts.values())
        if fewest < _FEWEST:
            raise UserError(
                f'Task "{task}" has {int(kept.sum())} gradients in these rows, with a label and not zero; the probe '
                f"needs {_FEWEST} of them to train on, to stop by and to test on each: give more rows with its label."
            )
    return parts


def _first(
    normalized: dict[str, np.ndarray], found: GradientRows, rows: np.ndarray, most: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The first gradients of each task among `rows`, `most` at most, and the rows that they are of."""
    numbers = {task: rows[found.kept[task][rows]][:most] for task in normalized}
    return {task: g[numbers[task]] for task, g in normalized.items()}, numbers


def _picture(
    shown: tuple[dict[str, np.ndarray], dict[str, np.ndarray]], before: dict[str, np.ndarray] | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None, tuple[float, float]]:
    """Points of the gradients shown, of the same rows before training, and what their two directions hold of both.

    Args:
        shown: of each task, gradients and the rows that they are of, see `_first`.
        before: all normalised gradients at the initial weights; 0 where a row has none.
    """
    after, numbers = shown
    if before is None:
        points, variances = two_dimensions(after)
        return points, None, variances
    for task, g in after.items():
        if g.shape[1] != before[task].shape[1]:
            raise UserError(
                f'The gradients of "{task}" have {g.shape[1]} entries in the model and {before[task].shape[1]} in '
                "initial; give the same model as it was before training."
            )
    there = {task: before[task][numbers[task]] for task in after}
    there = {task: g[np.any(g != 0, axis=1)] for task, g in there.items()}
    both = {("after", task): g for task, g in after.items()} | {("before", task): g for task, g in there.items()}
    points_of_both, variances = two_dimensions(both)
    of_moment = {m: {task: points_of_both[m, task] for task in after} for m in ("after", "before")}
    return of_moment["after"], of_moment["before"], variances


def _distances(
    normalized: dict[str, np.ndarray], found: GradientRows, rows: np.ndarray, random: np.random.RandomState
) -> list[Distance]:
    gradients, numbers = _first(normalized, found, rows, _DISTANCE_ROWS)
    distances = []
    for one, other in itertools.combinations(gradients, 2):
        x, y = gradients[one], gradients[other]
        together, shuffled = np.concatenate([x, y]), []
        for _ in range(_SHUFFLES):
            order = random.permutation(len(together))
            first, second = together[order[: len(x)]], together[order[len(x) :]]
            shuffled.append(sliced_wasserstein(first, second, random))
        distances.append(
            Distance(
                tasks=(one, other),
                squared_mmd=squared_mmd(x, y, x_rows=numbers[one], y_rows=numbers[other]),
                sliced_wasserstein=sliced_wasserstein(x, y, random),
                shuffled_sliced_wasserstein=float(np.mean(shuffled)),
            )
        )
    return distances
