"""From a config to what trains: encoded rows and a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from gradalign.alignment import (
    AdversarialAlignment,
    Alignment,
    CosineAlignment,
    GREATAlignment,
    MMDAlignment,
    MomentAlignment,
    Wasserstein,
)
from gradalign.architectures import shared_private
from gradalign.data import Preprocessing
from gradalign.errors import UserError
from gradalign.losses import WeightedBinaryCrossentropy
from gradalign.multi_task_model import MultiTaskModel
from gradalign.optimizers import LazyAdagrad, LazyAdam, RowWiseAdagrad, for_embeddings
from gradalign.optimizers.for_embeddings import TABLES
from gradalign.training.config import Config, LossConfig
from gradalign.training.encoding import Prepared, encode_all, learn
from gradalign.training.rows import Tables


def prepare(config: Config, tables: Tables, preprocessing: Preprocessing | None = None) -> Prepared:
    """Fit the preprocessing on the training part, where none is given, and encode all parts.

    Rows that are read in parts go through a temporary folder, which goes with what is returned.

    Raises:
        UserError: the parts do not fit the config: a column is missing, a label has one value only, and so on.
    """
    return encode_all(learn(config, tables, preprocessing), tables)


def build_model(config: Config, preprocessing: Preprocessing, total_steps: int) -> MultiTaskModel:
    """Build and compile the model that a config describes.

    Args:
        config: the config.
        preprocessing: fitted; it says which fields there are.
        total_steps: optimizer steps of the whole training, for the alignment's schedule.

    Raises:
        UserError: names that collide, say of a task and a column.
    """
    base = _base(config, preprocessing)
    model = MultiTaskModel(base, shared="shared_embedding", alignment=_alignment(config, total_steps))
    plays = config.alignment.method in ("adversarial", "great")
    rate = config.alignment.discriminator_learning_rate if plays else None
    model.compile(
        _optimizer(config, base),
        loss={task: loss_of(spec.loss) for task, spec in config.tasks.items()},
        loss_weights={task: spec.loss_weight for task, spec in config.tasks.items()},
        metrics={task: [keras.metrics.AUC(name="auc")] for task in config.tasks},
        jit_compile=config.training.jit_compile,
        discriminator_optimizer=None if rate is None else keras.optimizers.Adam(rate),
    )
    return model


def _base(config: Config, preprocessing: Preprocessing) -> keras.Model:
    """Build the base; with `model.initial_tasks` at the weights of one that has these tasks."""
    settings = config.model
    chain = {task: spec.chain for task, spec in config.tasks.items() if spec.chain is not None}

    def of_tasks(tasks: Iterable[str], chain: Mapping[str, str]) -> keras.Model:
        return shared_private(
            preprocessing.fields,
            tasks,
            shared_dim=settings.shared_dim,
            private_dim=settings.private_dim,
            towers=settings.towers,
            activation=settings.activation,
            dropout=settings.dropout,
            chain=chain,
        )

    try:
        if settings.initial_tasks is None:
            return of_tasks(config.tasks, chain)
        # The larger model comes first, as it would without this one, and is gone before this one is made.
        larger = of_tasks(settings.initial_tasks, {})
        initial = {layer.name: [keras.ops.convert_to_numpy(v) for v in layer.variables] for layer in larger.layers}
        del larger
        base = of_tasks(config.tasks, chain)
    except ValueError as error:
        raise UserError(str(error)) from None
    for layer in base.layers:
        # With the seeds of dropout, so that the masks are those of the larger model too.
        for variable, value in zip(layer.variables, initial.get(layer.name, []), strict=True):
            variable.assign(value)
    return base


def initial_model(config: Config, preprocessing: Preprocessing, total_steps: int) -> MultiTaskModel:
    """Build the model as a run of this config begins with it, at the weights that `training.seed` gives.

    Sets the random seeds of Python, NumPy and TensorFlow. Arguments and errors are those of `build_model`.
    """
    keras.utils.set_random_seed(config.training.seed)
    return build_model(config, preprocessing, total_steps)


def _optimizer(config: Config, base: keras.Model) -> keras.optimizers.Optimizer:
    """Return Adam, with the optimizer that the config names for the embedding tables, where `base` has any."""
    rate, kind = config.training.learning_rate, config.training.table_optimizer
    rest = keras.optimizers.Adam(rate)
    has_tables = any(variable.path.rpartition("/")[2] in TABLES for variable in base.trainable_variables)
    return for_embeddings(_TABLE_OPTIMIZERS[kind](rate), rest) if kind != "adam" and has_tables else rest


_TABLE_OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "lazy_adam": LazyAdam,
    "lazy_adagrad": LazyAdagrad,
    "row_wise_adagrad": RowWiseAdagrad,
}


def loss_of(settings: LossConfig) -> keras.losses.Loss:
    """Return the loss that a config describes, of probabilities.

    >>> loss_of(LossConfig()).name, loss_of(LossConfig(pos_weight=5.0)).pos_weight
    ('binary_crossentropy', 5.0)
    """
    if settings.pos_weight == 1.0 and settings.gamma is None:
        return keras.losses.BinaryCrossentropy(label_smoothing=settings.label_smoothing)
    return WeightedBinaryCrossentropy(
        settings.pos_weight, label_smoothing=settings.label_smoothing, gamma=settings.gamma or 0.0
    )


def _alignment(config: Config, total_steps: int) -> Alignment | None:
    settings = config.alignment
    if settings.method == "none":
        return None
    of_all: dict[str, Any] = {
        "schedule": settings.schedule,
        "total_steps": total_steps,
        "tasks": settings.tasks,
        "reach": settings.reach,
        "fraction": settings.fraction,
        "every": settings.every,
        "sign_free": settings.sign_free,
    }
    if settings.method == "cosine":
        return CosineAlignment(settings.weight, **of_all)
    of_most = {**of_all, "normalize": settings.normalize, "balance_labels": settings.balance_labels}
    if settings.method == "mmd":
        return MMDAlignment(settings.weight, kernel=settings.kernel, bandwidth=settings.bandwidth, **of_most)
    if settings.method == "moments":
        return MomentAlignment(settings.weight, mean=settings.mean, covariance=settings.covariance, **of_most)
    has_penalty = settings.objective == "wasserstein"
    of_game: dict[str, Any] = {
        **of_most,
        "objective": Wasserstein(settings.gradient_penalty) if has_penalty else settings.objective,
        "label_smoothing": settings.label_smoothing,
        "spectral_norm": settings.spectral_norm,
        "discriminator_steps": settings.discriminator_steps,
    }
    if settings.method == "great":
        # Without a second-order path it reaches what produces the shared embeddings alone, as either `reach` would do.
        del of_game["reach"], of_game["every"]
        return GREATAlignment(settings.weight, anchor=settings.anchor, **of_game)
    return AdversarialAlignment(settings.weight, **of_game)
