"""Layers that are right at second order, and the fields that describe a model's inputs.

>>> layer = FieldEmbedding({"city": Categorical(5), "age": Numeric()}, dim=4, name="shared_embedding")
>>> layer.compute_output_shape({"city": (None,), "age": (None,)})
(None, 8)

`BatchNormalization`, `LayerNormalization` and `GroupNormalization` take the place of Keras' own, whose second
derivative is wrong; `LSTM` and `GRU` never run with cuDNN, which has none. `make_twice_differentiable` puts them in.
"""

from gradalign.layers.chained_logit import ChainedLogit
from gradalign.layers.field_embedding import FieldEmbedding
from gradalign.layers.fields import (
    Categorical,
    Field,
    MultiValued,
    Numeric,
    field_from_config,
    field_to_config,
)
from gradalign.layers.normalization import BatchNormalization, GroupNormalization, LayerNormalization
from gradalign.layers.recurrent import GRU, LSTM
from gradalign.layers.tower import Tower
from gradalign.layers.twice_differentiable import make_twice_differentiable

__all__ = [
    "GRU",
    "LSTM",
    "BatchNormalization",
    "Categorical",
    "ChainedLogit",
    "Field",
    "FieldEmbedding",
    "GroupNormalization",
    "LayerNormalization",
    "MultiValued",
    "Numeric",
    "Tower",
    "field_from_config",
    "field_to_config",
    "make_twice_differentiable",
]
