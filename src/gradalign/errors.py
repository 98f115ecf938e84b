"""Errors that a user can mend: one sentence that names the thing and says how."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A wrong use or a bad input, said in one sentence; the command line prints it and exits with code 2.

    >>> raise UserError("config.yaml has no task; name at least one under `tasks:`.")
    Traceback (most recent call last):
    ...
    gradalign.errors.UserError: config.yaml has no task; name at least one under `tasks:`.
    """


class GradAlignWarning(UserWarning):
    """What trains but does not do what its user expects, such as a dead second-order path; given once per model."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a closing hint with the nearest of `names`, or "" where none is near.

    >>> nearest("epoch", ["epochs", "seed"])
    ' Did you mean "epochs"?'
    >>> nearest("zzz", ["epochs", "seed"])
    ''
    """
    found = difflib.get_close_matches(name, [str(n) for n in names], n=3, cutoff=0.6)
    if not found:
        return ""
    quoted = " or ".join(f'"{n}"' for n in found)
    return f" Did you mean {quoted}?"
