"""The three ways in which TensorFlow runs a function."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

MODES = ("eager", "graph", "jit")


def in_mode(function: Callable, mode: str) -> Callable:
    """`function` as it is, as a graph, or compiled by XLA."""
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "jit", autograph=False)


def compiled_steps(model) -> list[str]:
    """The names of the traced steps of `model.fit` that XLA compiles as a whole; empty where it compiles none."""
    functions, seen = [model.train_function], set()
    names = []
    while functions:
        function = functions.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        if isinstance(function, tf.types.experimental.GenericFunction):
            for traced in function._list_all_concrete_functions():
                attributes = traced.function_def.attr
                if "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b:
                    names.append(traced.name)
            functions.append(function.python_function)
        # Keras keeps the step's function in the closure of the one that `fit` calls.
        functions += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _holds(cell)]
    return names


def _holds(cell) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:  # empty
        return False
