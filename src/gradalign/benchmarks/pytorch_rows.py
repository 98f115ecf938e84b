"""The same models in PyTorch: the plain step, and the reference that `grad(..., create_graph=True)` gives.

As ASTMT does it (Maninis et al., CVPR 2019): each task's gradient at the shared tensor by a call of its own, a
discriminator on all of them behind the reversal, one backward pass. Normalisation and reversal are those of our
default, so that the updates agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch.utils.flop_counter import FlopCounterMode

from gradalign.benchmarks.keras_rows import named_weights
from gradalign.benchmarks.problem import DISCRIMINATOR_RATE, RATE, STRENGTH, Problem
from gradalign.benchmarks.row import Row

__all__ = ["pytorch"]

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "gelu": F.gelu}
_Dense = tuple[torch.Tensor, torch.Tensor]


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *upstream: torch.Tensor) -> torch.Tensor:
        return -STRENGTH * upstream[0]


def _reversed(x: torch.Tensor) -> torch.Tensor:
    reversed_: torch.Tensor = _Reversal.apply(x)  # type: ignore[no-untyped-call]
    return reversed_


class _Model:
    """Weights of a case's model and the functions that use them; all weights by their paths in Keras."""

    def __init__(self, problem: Problem) -> None:
        self.network, self.tasks = problem.network, problem.tasks
        start = named_weights(problem.base(), problem.discriminator())
        # Kernels as PyTorch keeps them, (out, in).
        self.weights = {name: torch.tensor(_turned(name, array), requires_grad=True) for name, array in start.items()}
        sizes = problem.network.sizes
        self.offsets = torch.tensor(np.cumsum([0, *sizes[:-1]]))

    def layers(self, *prefixes: str) -> list[_Dense]:
        """Return (kernel, bias) of the dense layers whose paths begin with one of `prefixes`, first layer first."""
        found = [w for name, w in self.weights.items() if name.startswith(prefixes) and "embedding" not in name]
        return list(zip(found[::2], found[1::2], strict=True))

    def embed(self, table: str, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids + self.offsets, self.weights[f"{table}/table"], sparse=True).flatten(1)

    def shared(self, ids: torch.Tensor) -> torch.Tensor:
        return self.hidden(self.embed("shared_embedding", ids), self.layers("encoder_"))

    def logits(self, shared: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        experts = [self.hidden(shared, self.layers(f"expert_{n}_")) for n in range(self.network.experts)]
        found = {}
        for task in self.tasks:
            x = shared
            if experts:
                [gate] = self.layers(f"gate_{task}/")
                shares = F.linear(shared, *gate).softmax(dim=1)
                x = torch.stack([shares[:, n : n + 1] * expert for n, expert in enumerate(experts)]).sum(dim=0)
            if self.network.private_dim:
                x = torch.cat([x, self.embed(f"private_embedding_{task}", ids)], dim=1)
            *hidden, last = self.layers(f"tower_{task}/")
            found[task] = F.linear(self.hidden(x, hidden), *last)
        return found

    def hidden(self, x: torch.Tensor, layers: list[_Dense]) -> torch.Tensor:
        for layer in layers:
            x = _ACTIVATIONS[self.network.activation](F.linear(x, *layer))
        return x

    def discriminate(self, rows: torch.Tensor) -> torch.Tensor:
        *hidden, last = self.layers("discriminator/")
        for layer in hidden:
            rows = torch.tanh(F.linear(rows, *layer))
        return F.linear(rows, *last)

    def alignment(self, losses: dict[str, torch.Tensor], shared: torch.Tensor) -> torch.Tensor:
        rows = []
        for loss in losses.values():
            [g] = torch.autograd.grad(loss, shared, create_graph=True)
            rows.append(_reversed(g * g.square().sum(dim=1).mean().rsqrt()))
        own_task = torch.arange(len(rows)).repeat_interleave(len(shared))
        return F.cross_entropy(self.discriminate(torch.cat(rows)), own_task)


def pytorch(problem: Problem, *, aligned: bool) -> Row:
    """Return the row of PyTorch's plain step, or of its reference for the aligned one."""
    model = _Model(problem)
    updates = _optimizers(problem, model, aligned)
    batches = _batches(problem)

    def step() -> None:
        ids, labels = next(batches)
        shared = model.shared(ids)
        logits = model.logits(shared, ids)
        losses = {task: F.binary_cross_entropy_with_logits(logits[task], labels[task]) for task in model.tasks}
        total = torch.stack(list(losses.values())).sum()
        if aligned:
            total = total + model.alignment(losses, shared)
        for update in updates:
            update.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        for update in updates:
            update.step()

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            step()
        return int(counter.get_total_flops())

    def weights() -> dict[str, np.ndarray]:
        return {name: _turned(name, weight.detach().numpy()) for name, weight in model.weights.items()}

    return Row(step, flops, weights)


def _turned(name: str, array: np.ndarray) -> np.ndarray:
    """Return a copy of a kernel turned around, (in, out) to (out, in) or back; of tables and biases as they are."""
    return np.array(array if name.endswith("/table") else array.T, order="C")


def _optimizers(problem: Problem, model: _Model, aligned: bool) -> list[torch.optim.Optimizer]:
    parts: dict[str, list[torch.Tensor]] = {"tables": [], "rest": [], "discriminator": []}
    for name, weight in model.weights.items():
        part = "discriminator" if name.startswith("discriminator/") else "tables" if "/table" in name else "rest"
        parts[part].append(weight)
    if problem.sgd:
        return [torch.optim.SGD([w for part in parts.values() for w in part], lr=1.0)]
    tables = torch.optim.SGD(parts["tables"], lr=RATE)
    adams = [torch.optim.Adam(parts["rest"], lr=RATE, fused=True)]
    if aligned:
        adams.append(torch.optim.Adam(parts["discriminator"], lr=DISCRIMINATOR_RATE, fused=True))
    return [tables, *adams]


def _batches(problem: Problem) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    ready = [
        (
            torch.tensor(np.stack(list(x.values()), axis=1)).long(),
            {t: torch.tensor(of_task) for t, of_task in y.items()},
        )
        for x, y in problem.batches
    ]
    while True:
        yield from ready
