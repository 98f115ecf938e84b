"""Does the alignment reach the shared tensor, and is its gradient right?

`check_second_order` runs one batch, changes nothing, and says in sentences what is dead and why. Every check runs with
the reversal at strength 1, since a schedule may start at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.sparse import sum_repeated_rows
from gradalign.gradients.task_gradients import TaskGradients

__all__ = ["SecondOrderReport", "TaskNorms", "check_second_order", "norms_at_shared"]

# Far under what smooth towers give (5e-3 of the first order) and far over rounding (3e-12 where the path is dead).
DEAD_BELOW = 1e-6
# The check looks at this many rows of a batch at most.
MOST_ROWS = 1024
# Finite differences may deviate by this part of the norm of dA/ds.
TOLERANCE = 0.02


@dataclass(frozen=True)
class TaskNorms:
    """One task's Euclidean gradient norms at the shared tensor.

    Attributes:
        rows: gradient rows that the alignment sees: labelled and not zero.
        first: norm of `dL_t/ds`.
        second: norm of the part of `dA/ds` that goes through this task's gradient.
    """

    task: str
    rows: int
    first: float
    second: float

    @property
    def is_dead(self) -> bool:
        """The task has gradients, yet the alignment sends nothing through them."""
        return self.rows > 0 and self.second <= DEAD_BELOW * self.first


@dataclass
class SecondOrderReport:
    """What `check_second_order` found; `str()` of it is the text.

    Attributes:
        tasks: `{task: TaskNorms}` of the aligned tasks.
        variables: `{variable path: (first, second)}`, norms of `d sum c_t L_t` and of `dA`.
        first, second: norms at the shared tensor, all tasks together.
        agrees: whether central differences of `A` along the shared tensor agree with its gradient; `None` where they
            were not taken.
        difference: largest deviation found, relative to the norm of `dA/ds`.
        normalize: the alignment's normalisation.
    """

    tasks: dict[str, TaskNorms]
    first: float
    second: float
    normalize: str
    variables: dict[str, tuple[float, float]] = field(default_factory=dict)
    agrees: bool | None = None
    difference: float | None = None

    @property
    def second_to_first(self) -> float:
        """Norm of `dA/ds` at strength 1 over the norm of `d sum c_t L_t / ds`; 0 where the latter is 0."""
        return self.second / self.first if self.first else 0.0

    @property
    def ok(self) -> bool:
        """No dead path, and finite differences do not disagree."""
        return not self.sentences()

    def sentences(self) -> list[str]:
        """Return what is wrong and how to mend it, one sentence each; empty where all is well."""
        if len(self.tasks) == 1:
            return [
                f'The alignment has one task, "{next(iter(self.tasks))}", so it has nothing to align and no effect; '
                "give it a second task, or train without an alignment."
            ]
        found = []
        dead = [norms.task for norms in self.tasks.values() if norms.is_dead]
        if dead:
            names = ", ".join(f'"{task}"' for task in dead)
            tasks = "tasks" if len(dead) > 1 else "task"
            what = f"There is a dead path: the alignment cannot reach the shared representation through {tasks} {names}"
            if self.normalize == "l2":
                found.append(
                    f'{what}, because with normalize="l2" and a piecewise-linear tower (ReLU or linear) the direction '
                    "of the gradient does not change with the shared tensor; use smooth activations such as gelu in "
                    'the tower, or normalize="batch".'
                )
            else:
                found.append(
                    f"{what}, because its gradient does not change with the shared tensor: the loss has no curvature "
                    "(such as hinge or mean absolute error) and the tower is piecewise linear; use smooth activations "
                    "such as gelu, or a loss with curvature."
                )
        silent = [norms.task for norms in self.tasks.values() if norms.rows == 0]
        if len(silent) == len(self.tasks):
            found.append("No task has a labelled row with a gradient in this batch, so there is nothing to align.")
        if self.agrees is False:
            found.append(
                "The second-order gradient is wrong: finite differences of the alignment loss deviate by "
                f"{self.difference:.0%} of its norm at the shared tensor; look for a layer between the shared tensor "
                "and a loss that stops gradients inside, such as a stock LayerNormalization or, while it trains, a "
                "BatchNormalization of vectors."
            )
        return found

    def __str__(self) -> str:
        lines = [
            "Second-order check (reversal at strength 1)",
            "",
            f"  {'task':<24}{'rows':>8}{'|dL/ds|':>12}{'|dA/ds|':>12}",
        ]
        for norms in self.tasks.values():
            lines.append(f"  {norms.task:<24}{norms.rows:>8}{norms.first:>12.3e}{norms.second:>12.3e}")
        lines.append(
            f"  {'all tasks':<24}{'':>8}{self.first:>12.3e}{self.second:>12.3e}   ratio {self.second_to_first:.3g}"
        )
        if self.variables:
            lines += ["", f"  {'variable':<56}{'|d sum cL|':>12}{'|dA|':>12}"]
            lines += [
                f"  {path[:54]:<56}{first:>12.3e}{second:>12.3e}" for path, (first, second) in self.variables.items()
            ]
        if self.agrees is not None:
            verdict = "agree" if self.agrees else "DISAGREE"
            lines += ["", f"  Finite differences {verdict}: largest deviation {self.difference:.2g} of |dA/ds|."]
        lines += ["", *(self.sentences() or ["All is well: the alignment reaches the shared tensor."])]
        return "\n".join(lines)


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

    def __init__(self, model: Any, batch: Any, shift: list[tf.Tensor] | None = None) -> None:
        tape = tf.GradientTape(persistent=True)
        # Before its variables are noted: a base may get them from its first batch.
        model.make_ready_for(batch)
        with _unchanged(model), model.alignment.fixed_strength(1.0), tape:
            self.forward = model.forward(batch, training=True, aligned=True, shift=shift)
            self.losses = model.weighted_losses(self.forward)
            gradients = model.task_gradients_of(self.forward)
            # Of equal value to what reach="shared" sees, and the same at the shared tensor.
            self.gradients = TaskGradients(gradients, lambda: dict(gradients))
            self.rows = model.alignment.kept_rows(self.gradients, self.forward.masks, self.forward.row_task)
            self.alignment_loss = model.alignment(self.gradients, self.forward.masks, self.forward.row_task)
        self.tape = tape

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
    tasks = {}
    for task, rows in run.rows.items():
        gradients = run.gradients[task]
        cotangents = run.tape.gradient(
            run.alignment_loss, gradients, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        second = _norm(run.at_shared(gradients, cotangents))
        tasks[task] = TaskNorms(
            task, int(tf.reduce_sum(tf.cast(rows, tf.int32))), _norm(run.at_shared(run.forward.losses[task])), second
        )
    return SecondOrderReport(
        tasks=tasks,
        first=_norm(run.at_shared(run.losses)),
        second=_norm(run.at_shared(run.alignment_loss)),
        normalize=model.alignment.normalize,
    )


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
    if not all(norms.is_dead for norms in report.tasks.values()):
        # Along a dead path there is no gradient to compare with, only the jumps of piecewise constant directions.
        report.difference, report.agrees = _finite_differences(model, batch, run)
    return report


def _finite_differences(model: Any, batch: Any, run: _Pass) -> tuple[float, bool]:
    """Return the largest relative deviation of central differences from `dA/ds`, and whether they agree.

    Along the gradient itself, where the signal is strongest, and along two random directions.
    """
    # The reversal at strength 1 turns the sign of dA/ds once.
    gradient = [-g for g in run.at_shared(run.alignment_loss)]
    length, loss = _norm(gradient), float(run.alignment_loss)
    size = _norm(run.forward.shared)
    eps = float(tf.experimental.numpy.finfo(run.alignment_loss.dtype.as_numpy_dtype).eps)
    # A step that moves the loss by a thousandth: rounding stays below, curvature stays small. Where that disagrees,
    # shorter steps, down to what rounding allows: a ReLU in tower or discriminator may bend within a step, and a
    # gradient that is wrong is wrong at every length.
    steps = [min(1e-3 * loss / length, 1e-2 * size) if length > 0 else 1e-4 * size]
    while len(steps) < 4 and _rounding(eps, loss, steps[-1] / 4) <= TOLERANCE * length:
        steps.append(steps[-1] / 4)
    directions = [[tf.random.stateless_normal(g.shape, [7, n], dtype=g.dtype) for g in gradient] for n in (1, 2)]
    if length > 0:
        directions.insert(0, gradient)
    largest, agrees = 0.0, True
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
                float(_Pass(model, batch, [tf.cast(sign * step, u.dtype) * u for u in unit]).alignment_loss)
                for sign in (1.0, -1.0)
            )
            deviation = abs((forth - back) / (2 * step) - along) - _rounding(eps, loss, step)
            least = min(least, max(deviation, 0.0))
            if least <= TOLERANCE * length:
                break
        agrees = agrees and least <= TOLERANCE * length
        largest = max(largest, least / length if length > 0 else 0.0)
    return largest, agrees


def _rounding(eps: float, loss: float, step: float) -> float:
    """Return what rounding of the loss can do to a central difference over `step`."""
    return 4 * eps * loss / max(step, 1e-30)
