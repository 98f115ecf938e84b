"""One model with a task for every Keras loss that a task may use, and labels for it with gaps."""

from __future__ import annotations

import inspect

import keras
import numpy as np

losses = keras.losses

# Head: activation and width. Labels: what the loss is for.
HEADS = {
    "probability": ("sigmoid", 1),
    "logit": (None, 1),
    "positive": ("softplus", 1),
    "real": (None, 1),
    "point": (None, 3),
    "probabilities": ("softmax", 3),
    "logits": (None, 3),
}

# task: (loss, head, labels). A name, or what makes the object: an object computes in the float type of its making.
LOSSES = {
    "bce": ("binary_crossentropy", "probability", "binary"),
    "bce_logits": (lambda: losses.BinaryCrossentropy(from_logits=True), "logit", "binary"),
    "bce_smoothed": (lambda: losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), "logit", "binary"),
    "focal": (lambda: losses.BinaryFocalCrossentropy(apply_class_balancing=True), "probability", "binary"),
    "focal_logits": (lambda: losses.BinaryFocalCrossentropy(from_logits=True, gamma=1.5), "logit", "binary"),
    "cce": ("categorical_crossentropy", "probabilities", "one-hot"),
    "cce_logits": (lambda: losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), "logits", "one-hot"),
    "class_focal": (losses.CategoricalFocalCrossentropy, "probabilities", "one-hot"),
    "class_focal_logits": (lambda: losses.CategoricalFocalCrossentropy(from_logits=True), "logits", "one-hot"),
    "gce": (lambda: losses.CategoricalGeneralizedCrossEntropy(q=0.7), "probabilities", "class"),
    "sparse": ("sparse_categorical_crossentropy", "probabilities", "class"),
    "sparse_logits": (lambda: losses.SparseCategoricalCrossentropy(from_logits=True), "logits", "class"),
    "hinge": ("hinge", "real", "binary"),
    "squared_hinge": ("squared_hinge", "real", "binary"),
    "class_hinge": ("categorical_hinge", "logits", "one-hot"),
    "mse": ("mse", "real", "real"),
    "mse_of_points": ("mse", "point", "point"),
    "mae": ("mae", "real", "real"),
    "mape": ("mape", "real", "real"),
    "msle": ("msle", "positive", "count"),
    "log_cosh": ("log_cosh", "real", "real"),
    "huber": (lambda: losses.Huber(delta=1.0), "real", "real"),
    "poisson": ("poisson", "positive", "count"),
    "kl": ("kl_divergence", "probabilities", "one-hot"),
    "cosine": (losses.CosineSimilarity, "point", "point"),
    "dice_of_rows": (lambda: losses.Dice(axis=(1,)), "probabilities", "one-hot"),
    "tversky_of_rows": (lambda: losses.Tversky(alpha=0.3, beta=0.7, axis=(1,)), "probabilities", "one-hot"),
}
# What no task may use, since it is no sum over rows, or has no second derivative.
REFUSED = {"Circle", "CTC"}


def covered() -> set[str]:
    """The classes of `keras.losses` that the table has, by name or as an object."""
    return {_class_of(loss) for loss, _, _ in LOSSES.values()}


def _class_of(loss) -> str:
    if not isinstance(loss, str):
        return type(loss()).__name__
    function = losses.get(loss).__name__.replace("_", "")
    return next(name for name in existing() if name.lower() == function)


def losses_of(tasks: dict[str, tuple]) -> dict[str, object]:
    """What `compile` takes."""
    return {task: loss if isinstance(loss, str) else loss() for task, (loss, _, _) in tasks.items()}


def existing() -> set[str]:
    classes = {name for name, of_name in inspect.getmembers(losses, inspect.isclass)}
    return classes - {"Loss"}


def labels(kind: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Labels of `rows` rows, two of which have none."""
    drawn = {
        "binary": lambda: rng.integers(0, 2, (rows, 1)),
        "one": lambda: np.ones((rows, 1)),
        "class": lambda: rng.integers(0, 3, rows),
        "one-hot": lambda: np.eye(3)[rng.integers(0, 3, rows)],
        "count": lambda: rng.integers(0, 6, (rows, 1)),
        "real": lambda: rng.normal(size=(rows, 1)) * 2,
        "point": lambda: rng.normal(size=(rows, 3)),
    }[kind]()
    drawn = drawn.astype("float64")
    drawn[rng.permutation(rows)[:2]] = np.nan
    return drawn


def base(tasks: dict[str, tuple], hidden: str = "tanh", width: int = 4) -> keras.Model:
    """`{"x": (B, 6)}` by way of the layer "encoder" to a head for every task, each with its own tower."""
    x = keras.Input((6,), name="x")
    shared = keras.layers.Dense(5, "tanh", name="encoder")(x)
    outputs = {}
    for task, (_, head, _) in tasks.items():
        activation, units = HEADS[head]
        tower = keras.layers.Dense(width, hidden, name=f"tower_{task}")(shared)
        outputs[task] = keras.layers.Dense(units, activation, name=task)(tower)
    return keras.Model({"x": x}, outputs)


def data(tasks: dict[str, tuple], rows: int, seed: int = 0) -> tuple[dict, dict]:
    """`(x, y)`."""
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, 6))}, {task: labels(kind, rows, rng) for task, (_, _, kind) in tasks.items()}
