"""The rows of a case of steps: one line for each way of training its model."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping

from gradalign.benchmarks.keras_rows import aligned, default_differs, monitored, plain
from gradalign.benchmarks.problem import Problem
from gradalign.benchmarks.recipe import recipe
from gradalign.benchmarks.row import Row, RowKind

__all__ = ["PLAIN", "STEP_ROWS"]

# The plain step is the faster of these.
PLAIN = ("plain", "plain-default")


def no_pytorch() -> str | None:
    """Say so where PyTorch cannot be compared."""
    import tensorflow as tf

    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    return (
        "PyTorch's rows run on the CPU, and TensorFlow uses a GPU here"
        if tf.config.list_physical_devices("GPU")
        else None
    )


def _pytorch(problem: Problem, *, aligned: bool) -> Row:
    from gradalign.benchmarks.pytorch_rows import pytorch

    return pytorch(problem, aligned=aligned)


STEP_ROWS: Mapping[str, RowKind] = {
    "plain": RowKind("keras.Model's own train step, as a graph", plain),
    "plain-default": RowKind(
        "keras.Model's own train step, compiled as Keras chooses",
        functools.partial(plain, jit_compile="auto"),
        default_differs,
    ),
    "aligned": RowKind("MultiTaskModel with AdversarialAlignment", aligned),
    "aligned-fraction": RowKind("aligned on a quarter of the rows", functools.partial(aligned, fraction=0.25)),
    "aligned-every": RowKind("aligned on every fourth step", functools.partial(aligned, every=4)),
    "aligned-monitored": RowKind("aligned with a GradientMonitor at its default interval, spread over it", monitored),
    "recipe-eager": RowKind("persistent tapes, three gradient calls, eager", functools.partial(recipe, graph=False)),
    "recipe-graph": RowKind("persistent tapes, three gradient calls, graph", functools.partial(recipe, graph=True)),
    "pytorch-plain": RowKind("PyTorch, plain step", functools.partial(_pytorch, aligned=False), no_pytorch),
    "pytorch-reference": RowKind(
        "PyTorch, grad(create_graph=True) for each task", functools.partial(_pytorch, aligned=True), no_pytorch
    ),
}
