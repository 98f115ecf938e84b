"""Optimizers for embedding tables: a step costs what the batch holds, and rows that it does not hold never change."""

from gradalign.optimizers.for_embeddings import EmbeddingsOptimizer, for_embeddings
from gradalign.optimizers.lazy_adagrad import LazyAdagrad, RowWiseAdagrad
from gradalign.optimizers.lazy_adam import LazyAdam
from gradalign.optimizers.row_wise import RowWiseOptimizer

__all__ = ["EmbeddingsOptimizer", "LazyAdagrad", "LazyAdam", "RowWiseAdagrad", "RowWiseOptimizer", "for_embeddings"]
