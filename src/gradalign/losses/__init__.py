"""Losses that Keras lacks, right at second order; every loss of Keras with one value for each row works as well."""

from gradalign.losses.weighted_binary_crossentropy import WeightedBinaryCrossentropy

__all__ = ["WeightedBinaryCrossentropy"]
