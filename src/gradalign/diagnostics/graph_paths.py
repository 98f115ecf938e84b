"""Which operations of a TensorFlow graph lie on a way that gradients take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

__all__ = ["Graph", "Node", "functions_of", "graph_of"]

# What hands a value on in another shape or precision, without computing with it.
_HANDS_ON = frozenset(
    ("Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "Select", "SelectV2", "BroadcastTo", "Transpose")
)


@dataclass(frozen=True)
class Node:
    """An operation: its kind, the names of those it takes differentiable values from, and functions that it calls."""

    kind: str
    inputs: tuple[str, ...]
    functions: tuple[str, ...] = ()


@dataclass
class Graph:
    """Operations by name, and for the body of a function where values come in and go out.

    Example:
        >>> graph = Graph({"a": Node("Placeholder", ()), "b": Node("Neg", ("a",)), "c": Node("Exp", ("a",))})
        >>> sorted(graph.between({"a"}, {"c"}))
        ['a', 'c']
    """

    nodes: dict[str, Node]
    sources: set[str] = field(default_factory=set)
    sinks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._users: dict[str, list[str]] = {name: [] for name in self.nodes}
        for name, node in self.nodes.items():
            for taken in node.inputs:
                self._users[taken].append(name)

    def between(self, sources: Iterable[str], sinks: Iterable[str]) -> set[str]:
        """Return the names of the operations on a way from `sources` to `sinks`, these included."""
        forth = _reached(sources, lambda name: self._users[name])
        return forth & _reached(sinks, lambda name: self.nodes[name].inputs)

    def is_shift(self, name: str) -> bool:
        """Tell whether the stop-gradient `name` only keeps an exponential from overflowing, as in a log-sum-exp.

        A largest value that is taken off and added again, or divided out, changes no derivative of any order.
        """
        behind, origins = [name], set()
        while behind:
            for taken in self.nodes[behind.pop()].inputs:
                kind = self.nodes[taken].kind
                if kind in _HANDS_ON:
                    behind.append(taken)
                else:
                    origins.add(kind)
        ahead, uses = [name], set()
        while ahead:
            for user in self._users[ahead.pop()]:
                kind = self.nodes[user].kind
                if kind in _HANDS_ON:
                    ahead.append(user)
                else:
                    uses.add(kind)
        values = origins - {"Const", "ZerosLike", "Fill"}
        return bool(values) and values <= {"Max", "Min"} and uses <= {"Sub", "Add", "AddV2"}


def graph_of(graph: Any) -> Graph:
    """Return the operations of a `tf.Graph`."""
    return Graph(
        {
            op.name: Node(
                op.type, tuple(t.op.name for t in op.inputs if _carries(t.dtype.as_datatype_enum)), _called(op.node_def)
            )
            for op in graph.get_operations()
        }
    )


def functions_of(predictions: dict[str, Any]) -> dict[str, Graph]:
    """Return the bodies of the functions that the graph of `predictions` calls, loops and branches too."""
    graph = next(iter(predictions.values())).graph
    if not any(_called(op.node_def) for op in graph.get_operations()):
        return {}
    return {f.signature.name: _graph_of_function(f) for f in graph.as_graph_def().library.function}


def _graph_of_function(function: Any) -> Graph:
    arguments = {arg.name: _carries(arg.type) for arg in function.signature.input_arg}
    nodes = {name: Node("Arg", ()) for name in arguments}
    for node in function.node_def:
        inputs = tuple(i.split(":")[0] for i in node.input if not i.startswith("^"))
        nodes[node.name] = Node(node.op, inputs, _called(node))
    sinks = {value.split(":")[0] for value in function.ret.values()}
    return Graph(nodes, {name for name, carries in arguments.items() if carries}, sinks)


def _carries(enum: int) -> bool:
    """Tell whether values of this type carry gradients; lists of tensors, in loops, are variants."""
    dtype = tf.as_dtype(enum)
    return bool(dtype.is_floating or dtype.is_complex or dtype == tf.variant)


def _called(node: Any) -> tuple[str, ...]:
    """Return the functions that an operation calls, from its definition; the condition of a loop has no gradient."""
    values = [value for key, value in node.attr.items() if key != "cond"]
    return tuple(f.name for v in values for f in ([v.func] if v.HasField("func") else v.list.func))


def _reached(start: Iterable[str], neighbours: Any) -> set[str]:
    reached, open_names = set(start), list(start)
    while open_names:
        for name in neighbours(open_names.pop()):
            if name not in reached:
                reached.add(name)
                open_names.append(name)
    return reached
