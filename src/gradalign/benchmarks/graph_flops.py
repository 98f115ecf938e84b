"""Matrix products of a traced graph, counted from the shapes of their operands."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from gradalign.errors import UserError

__all__ = ["graph_flops"]

_PRODUCTS = ("MatMul", "BatchMatMulV2")
_CONDITIONS = ("If", "StatelessIf")


def graph_flops(function: Any, *arguments: Any, taken: float = 1.0) -> float:
    """Return 2 m k n summed over the matrix products that one call of `function` runs.

    What nothing reads is left out, as TensorFlow leaves it out. Counted are MatMul and BatchMatMul, no Einsum.

    Args:
        function: a Python function of tensors.
        *arguments: tensors or specs with static shapes.
        taken: how often the first side of a condition (`tf.cond`) runs; the other side runs the rest of the time.

    Example:
        >>> def function(a, b):
        ...     _ = a @ b @ a  # nothing reads it
        ...     return a @ b
        >>> graph_flops(function, tf.zeros([2, 3]), tf.zeros([3, 2]))
        24.0
    """
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    graph = traced.graph
    definition = graph.as_graph_def(add_shapes=True)
    library = {f.signature.name: f for f in definition.library.function}
    ends = [t.op.name for t in graph.outputs] + [op.name for op in graph.control_outputs]
    return _Counter(library, taken).flops(definition.node, ends)


class _Counter:
    def __init__(self, library: dict[str, Any], taken: float) -> None:
        self.library, self.taken = library, taken

    def flops(self, nodes: Iterable[Any], ends: Iterable[str]) -> float:
        """Return the flops of what `ends` need."""
        by_name = {node.name: node for node in nodes}
        todo, seen, total = list(ends), set(), 0.0
        while todo:
            name = todo.pop()
            if name in seen or name not in by_name:
                continue
            seen.add(name)
            node = by_name[name]
            todo += [source.lstrip("^").split(":")[0] for source in node.input]
            if node.op in _PRODUCTS:
                total += _product(node, by_name)
            elif node.op in _CONDITIONS:
                total += self.taken * self.function(node.attr["then_branch"].func.name)
                total += (1 - self.taken) * self.function(node.attr["else_branch"].func.name)
            else:
                total += sum(self.function(called) for called in _called(node))
        return total

    def function(self, name: str) -> float:
        """Return the flops of a function that the graph calls; 0 where it is none of the graph's own."""
        if name not in self.library:
            return 0.0
        function = self.library[name]
        ends = [output.split(":")[0] for output in [*function.ret.values(), *function.control_ret.values()]]
        # What a function is given counts as nodes too, for their shapes.
        given = []
        for position, argument in enumerate(function.signature.input_arg):
            given.append(NodeDef(name=argument.name, op="_Arg"))
            given[-1].attr["_output_shapes"].CopyFrom(function.arg_attr[position].attr["_output_shapes"])
        return self.flops([*given, *function.node_def], ends)


def _called(node: Any) -> list[str]:
    """Names of the functions that a node runs."""
    called = []
    for name, attribute in node.attr.items():
        if name.startswith("_") or "grad" in name:
            continue
        called += [attribute.func.name] if attribute.func.name else []
        called += [f.name for f in attribute.list.func]
    return called


def _product(node: Any, by_name: dict[str, Any]) -> int:
    """2 m k n of a product: all entries of its output, each a sum of k terms."""
    output = _shape(node, 0)
    source, _, port = node.input[0].partition(":")
    left = _shape(by_name[source], int(port.rpartition(":")[2] or 0)) if source in by_name else None
    if output is None or left is None:
        raise UserError(f'The shapes of the matrix product "{node.name}" are not known, so it cannot be counted.')
    is_turned = node.attr["transpose_a"].b or node.attr["adj_x"].b
    return 2 * math.prod(output) * left[-2 if is_turned else -1]


def _shape(node: Any, output: int) -> list[int] | None:
    shapes = node.attr["_output_shapes"].list.shape
    if output >= len(shapes) or shapes[output].unknown_rank:
        return None
    sizes = [dim.size for dim in shapes[output].dim]
    return None if -1 in sizes else sizes
