"""What each column of a table is: the tasks' labels and the features."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from gradalign.conditions import Condition
from gradalign.errors import UserError, nearest
from gradalign.layers.fields import is_output_name

Options = dict[str, Any]

# The options of a column of each kind, with what holds where they are not given.
DEFAULTS: dict[str, Options] = {
    "numeric": {"transform": "bucket", "buckets": 16},
    "categorical": {"min_count": 2, "max_size": None},
    "multi_valued": {"min_count": 2, "max_size": None, "max_length": 50},
}
TRANSFORMS = ("bucket", "project")


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """One binary task, read from one column.

    A row is positive where the column holds one of `positive`, unlabelled where it is null, NaN or an empty string or
    where it does not meet the condition, and negative elsewhere.

    Args:
        label: the column.
        positive: one value or several.
        where: a condition on another column, such as "click == 1", that rows with a label meet; `None` for none.

    Raises:
        UserError: no column or no positive value is given, or `where` is no condition.

    Example:

    >>> TaskSpec("income_50k", "50000+.")
    TaskSpec(label='income_50k', positive=('50000+.',), where=None)
    """

    label: str
    positive: tuple[Any, ...] = (1,)
    where: str | None = None

    def __post_init__(self) -> None:
        values = self.positive
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            values = (values,)
        object.__setattr__(self, "positive", tuple(values))
        if not isinstance(self.label, str) or not self.label:
            raise UserError(f"The label of a task must be the name of a column, received {self.label!r}.")
        if not self.positive or any(isinstance(v, (Mapping, list, tuple)) or v is None for v in self.positive):
            raise UserError(
                f'The task with label "{self.label}" needs its positive value or a list of them, '
                f"received {list(self.positive)!r}."
            )
        _ = self.condition

    @property
    def condition(self) -> Condition | None:
        """`where`, parsed."""
        return (
            None
            if self.where is None
            else Condition.parse(self.where, f'`where` of the task with label "{self.label}"')
        )


@dataclasses.dataclass(frozen=True)
class Schema:
    """Every column's part, resolved: what the tasks are and how each feature is encoded.

    Args:
        tasks: task name -> `TaskSpec`, in the order of the model's outputs.
        numeric: column -> `{"transform": "bucket", "buckets": 16}`: at most so many ranges of equal numbers of rows;
            or `{"transform": "project"}`: standardised, then multiplied by a learnt vector.
        categorical: column -> `{"min_count": 2, "max_size": None}`: values rarer than `min_count` in the training table
            share the bucket of unknown values, and so do all but the `max_size` most frequent ones.
        multi_valued: column of lists -> the same, and `"max_length": 50`: so many values of a row are kept.
        drop: columns that are neither feature nor label.
        reasons: column -> why it was taken as what it is, for the inferred ones.

    Raises:
        UserError: a label, or the column of a `where`, among the features, a column named twice, an unknown option or a
            value out of range.

    Example:

    >>> schema = Schema({"click": TaskSpec("clicked")}, numeric={"age": {"buckets": 4}}, categorical={"city": {}})
    >>> schema.numeric["age"]
    {'transform': 'bucket', 'buckets': 4}
    >>> schema.columns
    ('age', 'city')
    """

    tasks: Mapping[str, TaskSpec]
    numeric: Mapping[str, Options] = dataclasses.field(default_factory=dict)
    categorical: Mapping[str, Options] = dataclasses.field(default_factory=dict)
    multi_valued: Mapping[str, Options] = dataclasses.field(default_factory=dict)
    drop: tuple[str, ...] = ()
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tasks, Mapping) or not self.tasks:
            raise UserError("There is no task; name at least one under `tasks`.")
        for kind in DEFAULTS:
            columns = {c: resolve_options(kind, c, o) for c, o in getattr(self, kind).items()}
            object.__setattr__(self, kind, columns)
        object.__setattr__(self, "tasks", dict(self.tasks))
        object.__setattr__(self, "drop", tuple(self.drop))
        self._check_roles()

    def _check_roles(self) -> None:
        for task, spec in self.tasks.items():
            if not isinstance(task, str) or not is_output_name(task):
                raise UserError(
                    f'The name of a task may hold letters from A to Z, digits, "_", "." and "-", received {task!r}.'
                )
            if not isinstance(spec, TaskSpec):
                raise UserError(f'Task "{task}" must be a TaskSpec, received {spec!r}.')
            if task in self.columns:
                raise UserError(f'Task "{task}" has the name of a feature column; rename the task.')
        label_of = {spec.label: task for task, spec in self.tasks.items()}
        condition_of = {spec.condition.column: task for task, spec in self.tasks.items() if spec.condition}
        role: dict[str, str] = dict.fromkeys(self.drop, "drop")
        for kind in DEFAULTS:
            for column in getattr(self, kind):
                if column in label_of:
                    raise UserError(
                        f'Column "{column}" is the label of task "{label_of[column]}" and cannot be a feature; '
                        f"take it out of `features.{kind}`."
                    )
                if column in condition_of:
                    raise UserError(
                        f'Column "{column}" decides which rows have the label of task "{condition_of[column]}" and '
                        f"cannot be a feature; take it out of `features.{kind}`."
                    )
                if column in role:
                    raise UserError(
                        f'Column "{column}" is named under both `features.{role[column]}` and `features.{kind}`; '
                        f"keep one."
                    )
                role[column] = kind

    @property
    def columns(self) -> tuple[str, ...]:
        """The feature columns: numeric, categorical, multi-valued."""
        return (*self.numeric, *self.categorical, *self.multi_valued)

    def kind(self, column: str) -> str:
        """Return "numeric", "categorical" or "multi_valued"; KeyError where `column` is no feature."""
        for kind in DEFAULTS:
            if column in getattr(self, kind):
                return kind
        raise KeyError(column)

    def features(self) -> dict[str, Any]:
        """Return the `features:` part of a config that gives this schema again without any inference.

        >>> Schema({"click": TaskSpec("clicked")}, categorical={"city": {}}, drop=("id",)).features()
        {'drop': ['id'], 'numeric': {}, 'categorical': {'city': {'min_count': 2, 'max_size': None}}, 'multi_valued': {}}
        """
        kinds = {kind: {c: dict(o) for c, o in getattr(self, kind).items()} for kind in DEFAULTS}
        return {"drop": list(self.drop), **kinds}

    def describe(self) -> str:
        """Return lines for a reader: the tasks, how many columns are what, and each inferred column with its reason.

        >>> print(Schema({"click": TaskSpec("clicked")}, categorical={"city": {}}).describe())
        task click: column "clicked" is 1
        1 categorical column: city
        """
        lines = []
        for task, spec in self.tasks.items():
            values = " or ".join(map(str, spec.positive))
            condition = f", where {spec.condition}" if spec.condition else ""
            lines.append(f'task {task}: column "{spec.label}" is {values}{condition}')
        for kind in DEFAULTS:
            columns = getattr(self, kind)
            if columns:
                plural = "s" if len(columns) > 1 else ""
                lines.append(f"{len(columns)} {kind.replace('_', '-')} column{plural}: {', '.join(columns)}")
        if self.drop:
            lines.append(f"{len(self.drop)} left out: {', '.join(self.drop)}")
        if self.reasons:
            lines.append("inferred:")
            width = max(map(len, self.reasons))
            lines += [f"  {column:<{width}}  {reason}" for column, reason in self.reasons.items()]
        return "\n".join(lines)


def resolve_options(kind: str, column: str, options: Any) -> Options:
    """Return the options of one column with the defaults filled in.

    Args:
        kind: a key of `DEFAULTS`.
        column: for the message.
        options: mapping of some of the options, or None.

    Raises:
        UserError: an unknown option or a value out of range.

    Example:

    >>> resolve_options("numeric", "age", {"buckets": 8})
    {'transform': 'bucket', 'buckets': 8}
    """
    where = f"`features.{kind}.{column}`"
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise UserError(f"{where} must be a mapping of options such as {DEFAULTS[kind]}, received {options!r}.")
    for key in options:
        if key not in DEFAULTS[kind]:
            raise UserError(
                f'{where} has no option "{key}"; it has {", ".join(DEFAULTS[kind])}.{nearest(str(key), DEFAULTS[kind])}'
            )
    resolved = {**DEFAULTS[kind], **options}
    if kind == "numeric":
        if resolved["transform"] not in TRANSFORMS:
            raise UserError(f'{where}: `transform` must be "bucket" or "project", received {resolved["transform"]!r}.')
        if resolved["transform"] == "project":
            if "buckets" in options:
                raise UserError(f"{where}: `buckets` is for the bucket transform only; take it out.")
            del resolved["buckets"]
    least = {"buckets": 2, "min_count": 1, "max_size": 1, "max_length": 1}
    for key, smallest in least.items():
        value = resolved.get(key, smallest)
        if key == "max_size" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            raise UserError(f"{where}: `{key}` must be a whole number of at least {smallest}, received {value!r}.")
    return resolved
