"""From a Parquet or CSV file to the inputs and labels of a model.

>>> import pyarrow as pa
>>> table = pa.table({"city": ["Oslo", "Rome", "Rome", "Oslo"], "click": [0, 1, 1, None]})
>>> schema = infer_schema(table, {"click": TaskSpec("click")})
>>> preprocessing = Preprocessing.fit(table, schema)
>>> preprocessing.encode(table)
{'city': array([2, 3, 3, 2], dtype=int32)}
>>> labels(table, schema)
{'click': array([ 0.,  1.,  1., nan], dtype=float32)}
"""

from gradalign.data.encoded import EncodedRows
from gradalign.data.encoders import BucketIds, IsMissing, Standardize, VocabularyIds
from gradalign.data.inference import infer_schema
from gradalign.data.labels import check_labels, labels
from gradalign.data.parts import DataFile, Part, Split
from gradalign.data.preprocessing import LearntColumn, Preprocessing, UnseenColumns
from gradalign.data.readers import read_table, split_rows
from gradalign.data.schema import Schema, TaskSpec
from gradalign.data.summary import Summary

__all__ = [
    "BucketIds",
    "DataFile",
    "EncodedRows",
    "IsMissing",
    "LearntColumn",
    "Part",
    "Preprocessing",
    "Schema",
    "Split",
    "Standardize",
    "Summary",
    "TaskSpec",
    "UnseenColumns",
    "VocabularyIds",
    "check_labels",
    "infer_schema",
    "labels",
    "read_table",
    "split_rows",
]
