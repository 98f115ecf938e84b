"""Bundled data sets.

>>> census_income().schema.numeric["age"]
{'transform': 'bucket', 'buckets': 16}
"""

from gradalign.datasets.census_income import CensusIncome, census_income

__all__ = ["CensusIncome", "census_income"]
