"""Floating-point operations of matrix products: a forward pass from the widths, a step from its formula.

In the notation of docs/design.md: E below the shared tensor, F above it, D in the discriminator, which sees the
gradients of all tasks. A product (m, k) by (k, n) counts 2 m k n.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from gradalign.benchmarks.cases import Network

__all__ = ["ForwardFlops", "forward_flops"]

DISCRIMINATOR = (64, 64)  # hidden widths of the default discriminator


@dataclasses.dataclass(frozen=True)
class ForwardFlops:
    """Forward pass of one batch: `below` = E, `above` = F, `discriminator` = D."""

    below: int
    above: int
    discriminator: int

    @property
    def plain(self) -> int:
        """A plain step: forward, gradients of the data, gradients of the weights."""
        return 3 * (self.below + self.above)

    @property
    def aligned(self) -> int:
        """An aligned step by double backpropagation with one merged outer backward pass: 3E + 6F + 3D.

        F forward, F for the task gradients, 2F for the way back through these and 2F for that through the forward pass.
        What tasks share above the shared tensor, such as experts, is gone back through once a task: more than this.
        """
        return 3 * self.below + 6 * self.above + 3 * self.discriminator

    @property
    def aligned_piecewise_linear(self) -> int:
        """The same for piecewise-linear towers with one logit, which compute their Jacobian once: 3E + 4F + 3D."""
        return 3 * self.below + 4 * self.above + 3 * self.discriminator


def forward_flops(network: Network, batch: int) -> ForwardFlops:
    """Return E, F and D of a batch.

    >>> forward_flops(Network((9, 9), dim=2, towers=(3,), tasks=2), batch=10)
    ForwardFlops(below=0, above=600, discriminator=179200)
    """
    embedded = network.dim * len(network.sizes)
    below = _chain((embedded, *network.encoder))
    shared = network.shared_width
    above, into_towers = 0, shared
    if network.experts:
        above = network.experts * _chain((shared, *network.expert_units)) + network.tasks * shared * network.experts
        into_towers = network.expert_units[-1]
    into_towers += network.private_dim * len(network.sizes)
    above += network.tasks * _chain((into_towers, *network.towers, 1))
    discriminator = network.tasks * _chain((shared, *DISCRIMINATOR, network.tasks))
    return ForwardFlops(2 * batch * below, 2 * batch * above, 2 * batch * discriminator)


def _chain(widths: Sequence[int]) -> int:
    return sum(a * b for a, b in itertools.pairwise(widths))
