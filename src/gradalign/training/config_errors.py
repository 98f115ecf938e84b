"""What pydantic found wrong in a config, as one sentence: the key's dotted path, the value, and what is wanted."""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gradalign.errors import UserError

Loc = tuple[int | str, ...]


def one_sentence(errors: Sequence[ErrorDetails], raw: object, root: type[BaseModel], source: str) -> UserError:
    """Return the error to raise for `errors`; an unknown key comes first, as a misspelt key also makes one missing."""
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    error = (unknown or list(errors))[0]
    place = _Place.find(error["loc"], raw, root)
    if error["type"] == "extra_forbidden":
        return UserError(_unknown_key(str(error["loc"][-1]), place, root, source))
    if error["type"] == "value_error":  # raised by our own validators: a whole sentence already
        return UserError(f"In {source}, {error['ctx']['error']}")
    if error["type"] == "missing":
        key, wanted = str(error["loc"][-1]), ""
        if place.model is not None:
            wanted = f"; it must be {place.model.model_fields[key].description}"
        return UserError(f"{_dotted((*place.path, key))} is missing from {source}{wanted}.")
    if error["loc"] and error["loc"][-1] == "[key]":
        around = _dotted(place.path[:-1])
        return UserError(f"{place.dotted} in {source} has a name that cannot be used; {around} must be {place.around}.")
    return UserError(f"{place.dotted} is {quote(place.value)} in {source}; it must be {place.wanted}.")


def quote(value: object) -> str:
    """A value as it would stand in a config: null, true, "text"; long ones are cut."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


class _Place:
    """A spot in a config: its path, the raw value there, what the schema wants there, and the section's model."""

    def __init__(self, value: object, model: type[BaseModel] | None) -> None:
        self.path: tuple[str, ...] = ()
        self.value = value
        self.model = model
        self.around = ""  # what the schema wants of the mapping around this place
        self.wanted = "a mapping with the keys " + ", ".join(model.model_fields) if model else "something else"

    @property
    def dotted(self) -> str:
        return _dotted(self.path)

    @classmethod
    def find(cls, loc: Loc, raw: object, root: type[BaseModel]) -> _Place:
        """Follow `loc` while it names keys of `raw`; what comes after (an index, a branch of a union) is left out."""
        place = cls(raw, root)
        inside: type[BaseModel] | None = None  # the model of a mapping's values, while `place` is at that mapping
        for key in loc:
            if not isinstance(place.value, dict) or key not in place.value:
                break
            value = place.value[key]
            if place.model is not None and key not in place.model.model_fields:
                break
            place.around = place.wanted
            if place.model is not None:
                field = place.model.model_fields[str(key)]
                place.wanted = field.description or "something else"
                model = _model_in(field.annotation)
                is_mapping = typing.get_origin(_bare(field)) is dict
                place.model, inside = (None, model) if is_mapping else (model, None)
            elif inside is not None:
                place.model, inside = inside, None
                place.wanted = "a mapping with the keys " + ", ".join(place.model.model_fields)
            place.path, place.value = (*place.path, str(key)), value
        return place


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path) if path else "the config"


def _bare(field: FieldInfo) -> Any:
    annotation = field.annotation
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def _is_model(annotation: Any) -> bool:
    # On Python 3.10 `list[int]` passes for a type, which `issubclass` then refuses.
    plain = isinstance(annotation, type) and typing.get_origin(annotation) is None
    return plain and issubclass(annotation, BaseModel)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first section's class that a type names, be it the type itself or inside dict[...]."""
    if _is_model(annotation):
        return typing.cast("type[BaseModel]", annotation)
    for argument in typing.get_args(annotation):
        if (found := _model_in(argument)) is not None:
            return found
    return None


def _unknown_key(key: str, place: _Place, root: type[BaseModel], source: str) -> str:
    known_where = f"a key of {place.dotted}" if place.path else "a known key"
    near = _near(key, place.model.model_fields if place.model else ())
    if near:
        hint = f' Did you mean "{_dotted((*place.path, near))}"?'
    else:
        elsewhere = {leaf: path for path, leaf in reversed(list(_all_keys(root)))}
        found = _near(key, elsewhere)
        known = ", ".join(place.model.model_fields) if place.model else ""
        hint = f' Did you mean "{elsewhere[found]}"?' if found else f" The keys there are: {known}."
    dotted = _dotted((*place.path, key))
    return f'"{dotted}" in {source} is not {known_where}.{hint}'


def _near(name: str, names: typing.Iterable[str]) -> str | None:
    found = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.6)
    return found[0] if found else None


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, last key) of every key with a fixed place; those under a task's or a column's name have none."""
    for name, field in model.model_fields.items():
        yield prefix + name, name
        if _is_model(field.annotation):
            yield from _all_keys(typing.cast("type[BaseModel]", field.annotation), f"{prefix}{name}.")
