"""What one input field is: the description from which embeddings and model inputs are built."""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Mapping
from typing import Any

from gradalign.errors import nearest


@dataclasses.dataclass(frozen=True)
class Categorical:
    """One id per row: integers of shape (B,), each in [0, size).

    Args:
        size: number of ids, at least 1.

    Raises:
        ValueError: `size` is not a positive whole number.

    Example:

    >>> Categorical(size=3)
    Categorical(size=3)
    """

    size: int

    def __post_init__(self) -> None:
        _check_size("Categorical", self.size)


@dataclasses.dataclass(frozen=True)
class Numeric:
    """One number per row, projected: shape (B,), float; its embedding is the number times a learnt vector.

    The number should be standardised, as `gradalign.data` does.

    Example:

    >>> Numeric()
    Numeric()
    """


@dataclasses.dataclass(frozen=True)
class MultiValued:
    """Any number of ids per row: integers of shape (B, L), padded with `padding_id`, or a ragged tensor (B, None).

    Its embedding is the mean over the ids that are not `padding_id`; a row without any gives zeros.

    Args:
        size: number of ids, the padding included, at least 2.
        padding_id: the id that stands for "nothing here", in [0, size).

    Raises:
        ValueError: `size` or `padding_id` is out of its range.

    Example:

    >>> MultiValued(size=10)
    MultiValued(size=10, padding_id=0)
    """

    size: int
    padding_id: int = 0

    def __post_init__(self) -> None:
        _check_size("MultiValued", self.size, least=2)
        if not _is_whole(self.padding_id) or not 0 <= self.padding_id < self.size:
            raise ValueError(f"`padding_id` must be an id in [0, {self.size}), received {self.padding_id!r}.")


Field = Categorical | Numeric | MultiValued

_KINDS: dict[str, type[Categorical | Numeric | MultiValued]] = {
    "categorical": Categorical,
    "numeric": Numeric,
    "multi_valued": MultiValued,
}


def field_to_config(field: Field) -> dict[str, Any]:
    """Return `field` as a dictionary of plain values, the inverse of `field_from_config`.

    Raises:
        ValueError: `field` is not a field.

    Example:

    >>> field_to_config(Categorical(size=3))
    {'kind': 'categorical', 'size': 3}
    """
    for kind, cls in _KINDS.items():
        if type(field) is cls:
            return {"kind": kind, **dataclasses.asdict(field)}
    raise ValueError(f"A field must be Categorical, Numeric or MultiValued, received {field!r}.")


def field_from_config(config: Mapping[str, Any]) -> Field:
    """Return the field that `config` describes.

    Args:
        config: what `field_to_config` returned.

    Raises:
        ValueError: `config` has no known kind.

    Example:

    >>> field_from_config({"kind": "multi_valued", "size": 9, "padding_id": 0})
    MultiValued(size=9, padding_id=0)
    """
    values = dict(config)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(
            f"The kind of a field must be one of {', '.join(_KINDS)}, received {kind!r}.{nearest(str(kind), _KINDS)}"
        )
    return _KINDS[kind](**values)


def is_input_name(name: str) -> bool:
    """Whether a served model can have an input of this name: an ASCII identifier that Python does not reserve.

    A model whose input is named otherwise trains, but its export fails.

    Example:

    >>> is_input_name("native_country"), is_input_name("native country"), is_input_name("class")
    (True, False, False)
    """
    return bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)) and not keyword.iskeyword(name) and name != "self"


def is_output_name(name: str) -> bool:
    """Whether a layer, and so a task, can have this name: TensorFlow's rule.

    Example:

    >>> is_output_name("buy"), is_output_name("buy it")
    (True, False)
    """
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name))


def check_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return `fields` as a dictionary of its own, or say what is wrong with it.

    Raises:
        ValueError: `fields` is empty, no mapping, or has an empty name.
        TypeError: it holds something that is not a field.

    Example:

    >>> check_fields({"age": Numeric()})
    {'age': Numeric()}
    """
    if not isinstance(fields, Mapping) or not fields:
        raise ValueError(f"`fields` must map at least one field name to a field, received {fields!r}.")
    for name, field in fields.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"The name of a field must be a non-empty string, received {name!r}.")
        if not isinstance(field, (Categorical, Numeric, MultiValued)):
            raise TypeError(f'Field "{name}" must be Categorical, Numeric or MultiValued, received {field!r}.')
    return dict(fields)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_size(kind: str, size: object, least: int = 1) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise ValueError(f"`size` of {kind} must be a whole number of at least {least}, received {size!r}.")
