"""Data sets: one that is bundled, and one that is drawn, with a known answer.

>>> census_income().schema.numeric["age"]
{'transform': 'bucket', 'buckets': 16}
>>> synthetic(100, test_rows=100).schema.columns[:2]
('field_0', 'field_1')
"""

from gradalign.datasets.census_income import CensusIncome, census_income
from gradalign.datasets.synthetic import Synthetic, synthetic

__all__ = ["CensusIncome", "Synthetic", "census_income", "synthetic"]
