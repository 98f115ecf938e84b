"""One optimizer for embedding tables and another for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from gradalign.errors import UserError

__all__ = ["EmbeddingsOptimizer", "for_embeddings"]

# Names of the weights of keras.layers.Embedding and of gradalign.layers.FieldEmbedding.
TABLES = ("embeddings", "table")


@keras.saving.register_keras_serializable(package="gradalign")
class EmbeddingsOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras ships no types
    """What `for_embeddings` returns: a Keras optimizer that hands each variable to one of two others.

    `learning_rate` is that of `rest`; setting it, as callbacks do, scales both by the same factor.
    """

    def __init__(
        self, tables: Any, rest: Any, names: Sequence[str] = TABLES, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate=0.0, name=name)
        self.tables, self.rest = (_optimizer(argument, o) for argument, o in (("tables", tables), ("rest", rest)))
        if kwargs:
            raise UserError(f"Give {', '.join(kwargs)} to the optimizers inside, not to the one around them.")
        if self.tables is self.rest:
            raise UserError("tables and rest are one optimizer, which can train one list of variables; give two.")
        if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"names is a list of names of weights; received {names!r}.")
        self.names = list(names)
        self._ratio = 1.0  # of the learning rates; kept for the time that one of them is 0, as in a warm-up

    def build(self, variables: list[Any]) -> None:
        """Give each variable to its optimizer."""
        if self.built:
            return
        super().build(variables)
        self._is_table = {self._var_key(v): v.path.rpartition("/")[2] in self.names for v in variables}
        parts = self._parted(variables, variables)
        if not parts[0][1]:
            raise UserError(
                f"None of the {len(variables)} variables is an embedding table, a weight named "
                f"{' or '.join(self.names)}; give names=[...] that fit yours, such as {variables[0].path}."
            )
        for optimizer, _, of_one in parts:
            optimizer.build(of_one)

    def _parted(self, gradients: Any, variables: Any) -> list[tuple[Any, list[Any], list[Any]]]:
        pairs = list(zip(gradients, variables, strict=True))
        parts = []
        for optimizer, wanted in ((self.tables, True), (self.rest, False)):
            own = [(g, v) for g, v in pairs if self._is_table[self._var_key(v)] is wanted]
            parts.append((optimizer, [g for g, _ in own], [v for _, v in own]))
        return parts

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Let both optimizers update their own variables."""
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self.built:
            self.build(variables)
        for optimizer, gradients, of_one in self._parted(grads, variables):
            if any(g is not None for g in gradients):
                optimizer.apply(gradients, of_one)
        self.iterations.assign_add(1)

    @property
    def variables(self) -> list[Any]:
        """The step counter, and the variables of both."""
        return [self._iterations, *self.tables.variables, *self.rest.variables]

    @property
    def learning_rate(self) -> Any:
        """That of `rest`."""
        return self.rest.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if float(self.rest.learning_rate) != 0.0:
            self._ratio = float(self.tables.learning_rate) / float(self.rest.learning_rate)
        self.tables.learning_rate = float(value) * self._ratio
        self.rest.learning_rate = value

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Leave variables, given themselves or by parts of their names, out of both weight decays; before training."""
        for optimizer in (self.tables, self.rest):
            optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Put averaged weights in place where `rest` keeps any."""
        for optimizer, _, variables in self._parted(var_list, var_list):
            optimizer.finalize_variable_values(variables)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        parts = {n: keras.saving.serialize_keras_object(o) for n, o in (("tables", self.tables), ("rest", self.rest))}
        return {**parts, "names": self.names, "name": self.name, "ratio": self._ratio}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> EmbeddingsOptimizer:
        """Make an optimizer of what `get_config` returned."""
        parts = {
            n: keras.saving.deserialize_keras_object(config[n], custom_objects=custom_objects)
            for n in ("tables", "rest")
        }
        ratio = config.get("ratio", 1.0)
        made = cls(**{key: value for key, value in config.items() if key != "ratio"} | parts)
        made._ratio = ratio
        return made


def for_embeddings(tables: Any, rest: Any, *, names: Sequence[str] = TABLES) -> EmbeddingsOptimizer:
    """Return an optimizer that trains embedding tables with `tables` and everything else with `rest`.

    Args:
        tables: an optimizer, or what `keras.optimizers.get` takes; `LazyAdam()` and its kin are made for this.
        rest: the same.
        names: the last part of the paths of tables.

    Raises:
        UserError: for arguments that cannot be used; when it is built, where no variable is a table.

    Example:
        >>> from gradalign.optimizers import LazyAdam
        >>> optimizer = for_embeddings(tables=LazyAdam(0.01), rest=keras.optimizers.Adam(0.001))
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(9, 2), keras.layers.Dense(1)])
        >>> optimizer.build(model.trainable_variables)
        >>> len(optimizer.tables.slots["momentum"]), round(float(optimizer.learning_rate), 6)
        (1, 0.001)
    """
    return EmbeddingsOptimizer(tables, rest, names)


def _optimizer(argument: str, given: Any) -> Any:
    found = keras.optimizers.get(given)
    if found is None:
        raise UserError(f"{argument} is an optimizer, or what keras.optimizers.get takes; received None.")
    if isinstance(found, (keras.optimizers.LossScaleOptimizer, EmbeddingsOptimizer)):
        raise UserError(f"{argument} is a plain optimizer; put {type(found).__name__} around the whole.")
    if found.loss_scale_factor:
        raise UserError(
            f"{argument} has a loss_scale_factor, but the loss is one for tables and the rest; put a "
            "LossScaleOptimizer around the whole."
        )
    if found.gradient_accumulation_steps:
        raise UserError(
            f"{argument} accumulates gradients, which tables and the rest cannot do apart; use larger batches."
        )
    return found
