"""Conditions on one column, such as `click == 1`: which rows of a table have a task's label.

Apart from `gradalign.data`, so that a config is checked without loading TensorFlow or pyarrow.
"""

from __future__ import annotations

import dataclasses
import re

from gradalign.errors import UserError

__all__ = ["Condition"]

# A column or a value: in quotes, or bare, without quotes and operators.
_TERM = r"""(?:'(?P<{0}_single>[^']*)'|"(?P<{0}_double>[^"]*)"|(?P<{0}_bare>[^'"=!<>]+?))"""
_CONDITION = re.compile(rf"\s*{_TERM.format('column')}\s*(?P<operator>==|!=)\s*{_TERM.format('value')}\s*")


@dataclasses.dataclass(frozen=True)
class Condition:
    """`column == value` or `column != value`.

    A row without a value in the column meets neither, except where the value is null: `== null` asks for rows without
    one, `!= null` for rows with one.

    Args:
        column: the column's name.
        is_equal: True for `==`, False for `!=`.
        value: what the column is compared with, as text; `None` for null.
    """

    column: str
    is_equal: bool
    value: str | None

    @classmethod
    def parse(cls, text: object, where: str = "where") -> Condition:
        """Return the condition that `text` says.

        Args:
            text: `column == value` or `column != value`. Both may stand in quotes, and have to where they hold a quote
                or an operator; the bare word null is no text but the lack of a value.
            where: what to call it in a message.

        Raises:
            UserError: for anything else.

        Example:
            >>> Condition.parse("click == 1")
            Condition(column='click', is_equal=True, value='1')
            >>> str(Condition.parse("'page kind' != null"))
            'page kind != null'
        """
        found = _CONDITION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            hint = ""
            if isinstance(text, str) and re.search(r"(?<![=!<>])=(?!=)", text):
                hint = "; write == for equal"
            elif isinstance(text, str) and re.search(r"[<>]", text):
                hint = "; other comparisons need a column of their own"
            shown = f'"{text}"' if isinstance(text, str) else repr(text)
            raise UserError(f'{where} is {shown}; it must be such as "click == 1" or "click != null"{hint}.')
        column = next(part for part in _parts(found, "column") if part is not None)
        if not column:
            raise UserError(f'{where} is "{text}", which names no column.')
        value = next(part for part in _parts(found, "value") if part is not None)
        is_null = found["value_bare"] == "null"
        return cls(column, found["operator"] == "==", None if is_null else value)

    def __str__(self) -> str:
        return f"{self.column} {'==' if self.is_equal else '!='} {'null' if self.value is None else self.value}"


def _parts(found: re.Match[str], term: str) -> list[str | None]:
    return [found[f"{term}_{form}"] for form in ("single", "double", "bare")]
