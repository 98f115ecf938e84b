"""Saved models load in a process that only imports GradAlign: its classes are known to Keras as soon as Keras is there.

Keras finds a saved model's classes among those that were registered, which importing their modules does. GradAlign
loads its modules late, and neither TensorFlow nor Keras itself, so it waits for Keras to be imported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["register_with_keras"]

# The rooms with classes that a saved model can hold.
_ROOMS = (
    "gradalign.layers",
    "gradalign.losses",
    "gradalign.optimizers",
    "gradalign.data",
    "gradalign.multi_task_model",
    "gradalign.alignment",
)
# Loaded by `import gradalign` itself; any other module of ours registers what it needs by being imported.
_OWN = {"gradalign._environment", "gradalign._registration", "gradalign._version", "gradalign.errors"}


def register_with_keras() -> None:
    """Import the rooms that register classes: now if Keras is loaded, else right after it is."""
    if "keras" in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterKeras) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterKeras())


def _register() -> None:
    for room in _ROOMS:
        importlib.import_module(room)


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Finds nothing itself; lets the registration follow the first import of Keras."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return Keras' own spec, whose loader then also registers; `None` for every other module."""
        if fullname != "keras":
            return None
        sys.meta_path.remove(self)
        # One of our modules that is being imported may be the one that imports Keras; it cannot be imported twice over.
        ours = any(name.startswith("gradalign.") and name not in _OWN for name in sys.modules)
        spec = importlib.util.find_spec(fullname)
        if ours or spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _register()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
