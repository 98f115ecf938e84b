"""Measures whether a layer's second-order gradient is right: against central differences, in float64.

The layer stands where a tower's would: `s -> layer -> loss`, `g = d loss / ds` taken as `MultiTaskModel` takes it, and
`A(g)` a smooth function of it in the alignment's place. Compared is the derivative of `A` by `s` and by the layer's
weights.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.diagnostics.layer_table import Case
from gradalign.gradients.task_gradients import TaskTape

__all__ = ["MODES", "Measured", "Probe", "float64", "measure"]

MODES = ("eager", "graph", "jit_compile")
ROWS = 3
STEP = 1e-5
# Third derivatives leave 1e-9 or so at this step; a mean that counts as a constant costs 1e-2 and more.
TOLERANCE = 1e-6


@dataclass
class Measured:
    """What one mode gave for one case.

    Attributes:
        first, second: deviation from central differences, relative to the length of the gradient.
        values: `(loss, g, A, dA/ds, dA/dw...)` at the point.
        error: what was raised instead; the rest is then empty.
    """

    first: float = np.inf
    second: float = np.inf
    values: tuple[Any, ...] = ()
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Both orders agree with central differences."""
        return not self.error and self.first < TOLERANCE and self.second < TOLERANCE


class Probe:
    """A case with its weights, in one mode of training, as a function of a point: the input and all weights.

    The state that a call moves (random numbers, moving statistics) is put back at the start of each call, so that two
    calls at one point are equal.
    """

    def __init__(self, case: Case, training: bool) -> None:
        self.case, self.training = case, training
        random.seed(0)  # From this the layers are seeded; Keras' own function would drop every kernel of TensorFlow.
        x = keras.Input(case.shape, batch_size=ROWS, dtype="int32" if case.ids else "float64")
        self.model = keras.Model(x, case.build(x))
        self.variables = list(self.model.trainable_variables)
        self.state = [(v, v.numpy()) for v in self.model.non_trainable_variables]
        rng = np.random.default_rng(1)
        self.ids = rng.integers(0, case.ids or 1, (ROWS, *case.shape)).astype("int32")
        x0 = rng.normal(size=(ROWS, *case.shape))
        self.point = [x0, *(v.numpy() + 0.1 * rng.normal(size=v.shape) for v in self.variables)]
        self.direction = [rng.normal(size=p.shape) for p in self.point]
        if case.ids:
            self.direction[0] = np.zeros_like(x0)  # The floats that stand in for ids are not looked at.
        if not case.weights:
            self.direction[1:] = [np.zeros_like(d) for d in self.direction[1:]]

    def __call__(self, *point: Any) -> tuple[Any, ...]:
        """Return `(loss, g, A, dA/ds, dA/dw...)` at `point`."""
        self._put(point)
        x = tf.convert_to_tensor(point[0])
        sources = [x, *(v.value for v in self.variables)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            s = self._call(self.ids) if self.case.ids else x
            with TaskTape() as task_tape:
                s = task_tape.watch(s)
                losses = _losses(s if self.case.ids else self._call(s))
            [g] = task_tape.gradients({"": losses}, [s])[""]
        # A = sum(pattern * g) + sum(g ** 2) / 2, by its slope at g: a graph of it would be half of what is compiled.
        pattern = _pattern(g.shape, 2.0)
        found = tape.gradient(g, sources, pattern + g, tf.UnconnectedGradients.ZERO)
        a = tf.reduce_sum((pattern + g / 2) * g)
        return tf.reduce_sum(losses), g, a, *(tf.convert_to_tensor(f) for f in found)

    def in_inference(self) -> Probe:
        """Return the same case with the same weights, in inference."""
        other = copy.copy(self)
        other.training = False
        return other

    def computes_the_same(self, other: Probe) -> bool:
        """Tell whether the outputs at the point are those of `other`, to the last bit."""
        return bool(np.array_equal(self._output(), other._output()))

    def _output(self) -> Any:
        self._put(self.point)
        return self._call(self.ids if self.case.ids else tf.constant(self.point[0]))

    def _put(self, point: Any) -> None:
        for variable, value in [*self.state, *zip(self.variables, point[1:], strict=True)]:
            variable.assign(value)

    def _call(self, x: Any) -> Any:
        return self.model(x, training=self.training)


def measure(cases: list[Case]) -> dict[str, dict[tuple[str, bool], Measured]]:
    """Return `{case name: {(mode, training): what was measured}}` for the three modes, in training and inference.

    The cases are one function, since compiling is what takes time; where that raises, each is measured by itself, and
    what it raises in a mode is kept as that mode's `error`. Where training and inference compute the same, one is
    measured and stands for both. The graph is held against central differences. So are the other modes, unless they
    give at the point, derivatives included, what the graph gave and it was right: XLA compiles second derivatives of a
    recurrent layer anew for each point.

    Example:
        >>> case = Case("Dense", "Dense", lambda x: keras.layers.Dense(2, "tanh")(x))
        >>> sorted(mode for mode, result in measure([case])["Dense"].items() if result.is_right)[:2]
        [('eager', False), ('eager', True)]
    """
    with float64():
        of_case = [_probes(case) for case in cases]
        probes = [probe for pair in of_case for probe in pair]

        def run(points: Any) -> list[tuple[Any, ...]]:
            return [probe(*point) for probe, point in zip(probes, points, strict=True)]

        graph = tf.function(run, autograph=False)

        def traced_once(points: Any) -> Any:
            return graph(points)

        compiled = tf.function(traced_once, jit_compile=True, autograph=False)
        results: dict[str, list[Measured]] = {}
        try:
            results["graph"] = _measured(graph, probes)
            results["eager"] = _measured(run, probes, results["graph"])
            results["jit_compile"] = _measured(compiled, probes, results["graph"])
        except (LookupError, tf.errors.OpError) as error:
            if len(cases) > 1:
                return {name: found for case in cases for name, found in measure([case]).items()}
            failed = Measured(error=f"{type(error).__name__}: {error}")
            results = {mode: results.get(mode, [failed] * len(probes)) for mode in MODES}
        else:
            # A function marked so runs compiled by XLA or not at all.
            specs = [[tf.TensorSpec(p.shape, tf.float64) for p in probe.point] for probe in probes]
            assert compiled.get_concrete_function(specs).function_def.attr["_XlaMustCompile"].b
    found, position = {}, 0
    for case, pair in zip(cases, of_case, strict=True):
        last = position + len(pair) - 1
        found[case.name] = {
            (mode, training): results[mode][position if training else last]
            for mode in MODES
            for training in (True, False)
        }
        position = last + 1
    return found


def _probes(case: Case) -> list[Probe]:
    training = Probe(case, True)
    inference = training.in_inference()
    return [training] if training.computes_the_same(inference) else [training, inference]


def _measured(run: Any, probes: list[Probe], reference: list[Measured] | None = None) -> list[Measured]:
    def at(size: float) -> list[tuple[Any, ...]]:
        points = [
            [tf.constant(p + size * d) for p, d in zip(probe.point, probe.direction, strict=True)] for probe in probes
        ]
        return [tuple(np.asarray(value) for value in values) for values in run(points)]

    here = at(0.0)
    if reference and all(known.is_right for known in reference):
        pairs = list(zip(here, reference, strict=True))
        if all(np.allclose(a, b, 1e-9, 1e-12) for h, r in pairs for a, b in zip(h, r.values, strict=True)):
            return [Measured(known.first, known.second, h) for h, known in pairs]
    return [_compared(*results) for results in zip(probes, here, at(STEP), at(-STEP), strict=True)]


@contextmanager
def float64() -> Iterator[None]:
    """Let layers compute in float64 while the context lasts."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


def _compared(probe: Probe, here: tuple[Any, ...], forth: tuple[Any, ...], back: tuple[Any, ...]) -> Measured:
    first = 0.0
    if not probe.case.ids and not np.any([np.any(d) for d in probe.direction[1:]]):
        first = _deviation(forth[0] - back[0], here[1:2], probe.direction[:1])
    return Measured(first, _deviation(forth[2] - back[2], here[3:], probe.direction), here)


def _deviation(difference: Any, gradients: Any, directions: Any) -> float:
    along = sum(float(np.sum(g * d)) for g, d in zip(gradients, directions, strict=True))
    length = np.sqrt(sum(float(np.sum(g * g)) for g in gradients))
    wide = np.sqrt(sum(float(np.sum(d * d)) for d in directions))
    return abs(float(difference) / (2 * STEP) - along) / max(length * wide, 1e-12)


def _losses(z: Any) -> Any:
    """A loss for each row, with curvature: (B, 1)."""
    rows = tf.reshape(z, [ROWS, -1])
    return tf.math.softplus(rows @ _pattern((rows.shape[1], 1), 1.0))


def _pattern(shape: Any, offset: float) -> Any:
    """Fixed numbers of mixed signs and sizes."""
    size = int(np.prod(shape))
    return tf.constant(np.sin(offset + 1.3 * np.arange(size)).reshape(shape))
