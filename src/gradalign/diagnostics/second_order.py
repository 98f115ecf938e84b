"""Does the alignment reach the shared tensor, and is its gradient right?

`check_second_order` runs one batch, changes nothing, and says in sentences what is dead and why. Every check runs with
the reversal at strength 1, since a schedule may start at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gradalign.diagnostics.discriminator_checks import label_leak, mixes_rows
from gradalign.diagnostics.path_layers import has_kinks, layers_on_the_path
from gradalign.diagnostics.report import DEAD_BELOW, SecondOrderReport, TaskNorms
from gradalign.errors import UserError
from gradalign.gradients.recording import layer_paths
from gradalign.gradients.sparse import sum_repeated_rows
from gradalign.gradients.task_gradients import TaskGradients
from gradalign.layers.tower import Tower

__all__ = ["check_second_order", "norms_at_shared"]

# The check looks at this many rows of a batch at most.
MOST_ROWS = 1024
# Finite differences may deviate by this part of the norm of dA/ds.
TOLERANCE = 0.02


@contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Put moving statistics and dropout seeds back afterwards, so that a check leaves no trace and can be repeated."""
    variables = [v for layer in (model.base, model.alignment) for v in layer.variables if not v.trainable]
    values = [tf.identity(v.value) for v in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _few_rows(batch: Any) -> Any:
    def rows(values: Any) -> Any:
        composite = isinstance(values, (tf.RaggedTensor, tf.SparseTensor))
        return (values if composite else tf.convert_to_tensor(values))[:MOST_ROWS]

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        raise UserError(
            "The batch has no labels; give (x, y) or (x, y, sample_weight), the labels a dict keyed by task."
        )
    return tuple(None if part is None else tf.nest.map_structure(rows, part) for part in (x, y, sample_weight))


class _Pass:
    """One eager forward pass at strength 1 with everything the norms need."""

    def __init__(self, model: Any, batch: Any) -> None:
        tape = tf.GradientTape(persistent=True)
        # Before its variables are noted: a base may get them from its first batch.
        model.make_ready_for(batch)
        # Ahead of the pass, which some of them would break off with an error of TensorFlow's.
        self.path_layers = layers_on_the_path(model) if model.alignment.second_order else []
        with _unchanged(model), model.alignment.fixed_strength(1.0), tape:
            self.forward = model.forward(batch, training=True, aligned=True)
            self.losses = model.weighted_losses(self.forward)
            gradients = model.task_gradients_of(self.forward)
            # Of equal value to what reach="shared" sees, and the same at the shared tensor.
            self.gradients = TaskGradients(gradients, lambda: dict(gradients))
            given = self.forward.masks, self.forward.row_task
            positives = model.positives_of(self.forward)
            self.task_rows = model.alignment.rows_of(gradients, *given, positives=positives)
            self.rows = model.alignment.kept_rows(self.task_rows)
            self.alignment_loss = model.alignment(self.gradients, *given, positives=positives)
        self.tape = tape
        self.model = model

    def model_loss(self) -> float:
        """Return what the model descends, which an adversary's loss need not be."""
        with _unchanged(self.model), self.model.alignment.fixed_strength(1.0):
            return float(self.model.alignment.model_loss(self.task_rows))

    def at_shared(self, target: Any, cotangents: Any = None) -> list[tf.Tensor]:
        return list(
            self.tape.gradient(
                target,
                self.forward.shared,
                output_gradients=cotangents,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        )


def _norm(tensors: Any) -> float:
    """Euclidean norm of all tensors together, in float64; repeated rows of a table's gradient are summed first."""
    dense = [
        tf.convert_to_tensor(sum_repeated_rows(t).values if isinstance(t, tf.IndexedSlices) else t)
        for t in tensors
        if t is not None
    ]
    return float(
        tf.sqrt(
            tf.add_n([tf.reduce_sum(tf.square(tf.cast(t, tf.float64))) for t in dense] or [tf.zeros((), tf.float64)])
        )
    )


def norms_at_shared(model: Any, batch: Any) -> SecondOrderReport:
    """Return the norms at the shared tensor, without finite differences; costs one eager step on at most 1,024 rows."""
    return _norms(model, _Pass(model, _few_rows(batch)))


def _norms(model: Any, run: _Pass) -> SecondOrderReport:
    tasks, second_order = {}, model.alignment.second_order
    # One backward pass for all tasks, since each goes through the whole discriminator.
    cotangents = run.tape.gradient(
        run.alignment_loss,
        {task: run.gradients[task] for task in run.rows},
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    for task, rows in run.rows.items():
        gradients = run.gradients[task]
        second = _norm(run.at_shared(gradients, cotangents[task])) if second_order else 0.0
        first = _norm(run.at_shared(run.forward.losses[task]))
        tasks[task] = TaskNorms(
            task,
            rows=_count(rows),
            first=first,
            second=second,
            labelled=_count(run.forward.masks[task]),
            # Asked only where it tells one reason for a dead path from the other.
            bends=not second_order or second > DEAD_BELOW * first or _bends(run, gradients),
        )
    with _unchanged(model):
        leaks = model.alignment.has_weights and len(tasks) > 1 and mixes_rows(model.alignment, run.task_rows)
    return SecondOrderReport(
        tasks=tasks,
        first=_norm(run.at_shared(run.losses)),
        second=_norm(run.at_shared(run.alignment_loss)),
        normalize=model.alignment.normalize,
        mixes_rows=leaks,
        leak=label_leak(run.forward.rows, run.forward.predictions, list(tasks))
        if model.alignment.has_weights and not model.alignment.needs_positives
        else None,
        has_discriminator=model.alignment.has_weights,
        second_order=second_order,
        can_keep_lengths="normalize" in model.alignment.get_config(),
        path_layers=run.path_layers,
    )


def _count(booleans: tf.Tensor) -> int:
    return int(tf.reduce_sum(tf.cast(booleans, tf.int32)))


def _bends(run: _Pass, gradients: list[tf.Tensor]) -> bool:
    """Whether a task's gradients change with the shared tensors, along a random direction."""
    direction = [tf.random.stateless_normal(g.shape, [7, 0], dtype=g.dtype) for g in gradients]
    return _norm(run.at_shared(gradients, direction)) > DEAD_BELOW * _norm(gradients)


def check_second_order(model: Any, batch: Any) -> SecondOrderReport:
    """Check on one batch that the alignment reaches the shared tensor, and that its gradient is right.

    Args:
        model: a compiled `gradalign.MultiTaskModel` with an alignment.
        batch: `(x, y)` or `(x, y, sample_weight)`, as `fit` takes them; at most 1,024 rows are used.

    Returns:
        A report with norms by task and by variable, a finite-difference verdict, and sentences. The model is not
        changed.

    Raises:
        UserError: for a model without alignment, or one that is not compiled.

    Example:
        >>> import keras
        >>> x = keras.Input((4,), name="x")
        >>> s = keras.layers.Dense(8, activation="gelu", name="encoder")(x)
        >>> head = lambda task: keras.layers.Dense(1, "sigmoid", name=task)(keras.layers.Dense(8, "relu")(s))
        >>> base = keras.Model(x, {"click": head("click"), "buy": head("buy")})
        >>> from gradalign import AdversarialAlignment, MultiTaskModel
        >>> model = MultiTaskModel(base, "encoder", AdversarialAlignment(normalize="l2"))
        >>> model.compile("adam", loss="binary_crossentropy")
        >>> data = tf.random.normal([16, 4]), {"click": tf.ones([16]), "buy": tf.zeros([16])}
        >>> "dead path" in str(check_second_order(model, data))
        True
    """
    if getattr(model, "alignment", None) is None:
        raise UserError("check_second_order needs a MultiTaskModel with an alignment; this model has none.")
    if not model.compiled:
        raise UserError("check_second_order needs a compiled model: the losses are part of what it checks.")
    batch = _few_rows(batch)
    run = _Pass(model, batch)
    report = _norms(model, run)
    variables = model.trainable_variables + list(model.alignment.trainable_variables)
    first = run.tape.gradient(run.losses, variables)
    second = run.tape.gradient(run.alignment_loss, variables)
    report.variables = {v.path: (_norm([f]), _norm([s])) for v, f, s in zip(variables, first, second, strict=True)}
    halves = ("float16", "bfloat16")
    layers = layer_paths(model.base)
    report.is_coarse = any(getattr(layer, "compute_dtype", "") in halves for layer in layers.values())
    report.towers = {path: layer.general_because for path, layer in layers.items() if isinstance(layer, Tower)}
    if report.second_order and not report.is_coarse and not all(norms.is_dead for norms in report.tasks.values()):
        # Along a dead path there is no gradient to compare with, only the jumps of piecewise constant directions.
        report.difference, report.agrees, report.reverses = _finite_differences(model, batch, run)
        report.drowned = report.agrees is None
        if report.agrees is False and report.reverses and has_kinks(model):
            # A loss of gradients that jump jumps itself, within every step that rounding allows.
            report.agrees, report.jumps = None, True
    return report


def _finite_differences(model: Any, batch: Any, run: _Pass) -> tuple[float | None, bool | None, bool | None]:
    """Return the largest relative deviation of central differences from `dA/ds`, if they agree, and if they reverse.

    `None` for each where rounding is larger than what they would show.
    Along the gradient itself, where the signal is strongest, and along two random directions.
    """
    gradient = run.at_shared(run.alignment_loss)
    length, loss = _norm(gradient), abs(run.model_loss())
    size = _norm(run.forward.shared)
    eps = float(tf.experimental.numpy.finfo(run.alignment_loss.dtype.as_numpy_dtype).eps)
    # A step that moves the loss by a thousandth: rounding stays below, curvature stays small. Where that disagrees,
    # shorter steps, down to what rounding allows: a ReLU in tower or discriminator may bend within a step, and a
    # gradient that is wrong is wrong at every length.
    steps = [min(1e-3 * loss / length, 1e-2 * size) if length > 0 else 1e-4 * size]
    if length > 0 and _rounding(eps, loss, steps[0]) > length / 2:
        return None, None, None
    while len(steps) < 4 and _rounding(eps, loss, steps[-1] / 4) <= TOLERANCE * length:
        steps.append(steps[-1] / 4)
    directions = [[tf.random.stateless_normal(g.shape, [7, n], dtype=g.dtype) for g in gradient] for n in (1, 2)]
    if length > 0:
        directions.insert(0, gradient)
    largest, agrees, reverses = 0.0, True, True
    for direction in directions:
        scale = _norm(direction)
        unit = [d / tf.cast(scale, d.dtype) for d in direction]
        along = sum(
            float(tf.reduce_sum(tf.cast(g, tf.float64) * tf.cast(u, tf.float64)))
            for g, u in zip(gradient, unit, strict=True)
        )
        least = math.inf
        for step in steps:
            forth, back = (
                _shifted_loss(model, batch, [tf.cast(sign * step, u.dtype) * u for u in unit]) for sign in (1.0, -1.0)
            )
            slope, rounding = (forth - back) / (2 * step), _rounding(eps, loss, step)
            least = min(least, max(abs(slope - along) - rounding, 0.0))
            # Of the right size and the wrong sign: the gradient that came back was not reversed.
            if direction is gradient and abs(slope + along) - rounding <= TOLERANCE * length:
                reverses = False
            if least <= TOLERANCE * length:
                break
        agrees = agrees and least <= TOLERANCE * length
        largest = max(largest, least / length if length > 0 else 0.0)
    return largest, agrees, reverses


def _shifted_loss(model: Any, batch: Any, shift: list[tf.Tensor]) -> float:
    """Return what the model descends where its shared tensors are moved by `shift`; nothing is differentiated twice."""
    with _unchanged(model), model.alignment.fixed_strength(1.0):
        forward = model.forward(batch, training=True, aligned=True, shift=shift)
        given = model.task_gradients_of(forward), forward.masks, forward.row_task
        rows = model.alignment.rows_of(*given, positives=model.positives_of(forward))
        return float(model.alignment.model_loss(rows))


def _rounding(eps: float, loss: float, step: float) -> float:
    """Return what rounding of the loss can do to a central difference over `step`."""
    return 4 * eps * loss / max(step, 1e-30)
