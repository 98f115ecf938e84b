"""HTML as values: what is not `Html` already is escaped, so that no text of a file can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Child", "Html", "breakable", "join", "tag"]

_VOID = ("br", "link", "meta")


class Html(str):
    """Text that is HTML already, and is written as it stands."""

    __slots__ = ()


Child = str | Iterable[str] | None


def tag(element: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element.

    Args:
        element: its name.
        children: text, which is escaped, or `Html`, or lists of these; None is left out.
        attributes: `class_` stands for `class`, `stroke_width` for `stroke-width`; True gives an attribute without a
            value, None and False none.

    Example:
        >>> tag("p", "a < b ", tag("b", "& c"), class_="note", title='"x"', hidden=True)
        '<p class="note" title="&quot;x&quot;" hidden>a &lt; b <b>&amp; c</b></p>'
    """
    opened = f"<{element}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Html(opened) if element in _VOID else Html(f"{opened}{join(*children)}</{element}>")


def join(*children: Child) -> Html:
    """Return the children one after another, text escaped.

    Example:
        >>> join("1 < 2", [Html("<br>"), "3 > 2"], None)
        '1 &lt; 2<br>3 &gt; 2'
    """
    return Html("".join(_text(child) for child in children))


def breakable(*children: Child) -> Html:
    """Return the children one after another, with places in their text where a long name may go on in the next line.

    Example:
        >>> breakable("never_married", Html("<b>a_b</b>"))
        'never_<wbr>married<b>a_b</b>'
    """
    made = [
        join(c).replace("_", "_<wbr>") if isinstance(c, str) and not isinstance(c, Html) else join(c) for c in children
    ]
    return Html("".join(made))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return join(*child)


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
