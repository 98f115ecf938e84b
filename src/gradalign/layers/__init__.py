"""Layers that are right at second order, and the fields that describe a model's inputs.

>>> layer = FieldEmbedding({"city": Categorical(5), "age": Numeric()}, dim=4, name="shared_embedding")
>>> layer.compute_output_shape({"city": (None,), "age": (None,)})
(None, 8)
"""

from gradalign.layers.field_embedding import FieldEmbedding
from gradalign.layers.fields import (
    Categorical,
    Field,
    MultiValued,
    Numeric,
    field_from_config,
    field_to_config,
)
from gradalign.layers.tower import tower

__all__ = [
    "Categorical",
    "Field",
    "FieldEmbedding",
    "MultiValued",
    "Numeric",
    "field_from_config",
    "field_to_config",
    "tower",
]
