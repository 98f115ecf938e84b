"""The technique in plain PyTorch, written from the maths and from nothing else.

    s    = E(x)                     shared embeddings, concatenated                 (B, D)
    z_t  = F_t([s, p_t])            tower of task t                                 (B, 1) or (B, K)
    L_t  = sum_i m w l / sum_i m w  mean over the rows that have the label          scalar
    g_t  = d (sum_i m w l) / ds     row gradients, create_graph=True                (B, D)
    q_t  = N(g_t)                   over labelled rows whose gradient is not zero   (rows_t, D)
    A    = mean_t mean_i CE(D(R_a(q_ti)), t)
    J    = sum_t c_t L_t + A

The normalisation has no epsilon: rows that cannot be divided are left out by indexing, before the division.
Nothing here is shared with GradAlign: no helper, no constant, no way of computing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

ACTIVATIONS = {
    "tanh": torch.tanh,
    "gelu": F.gelu,  # the exact one, with erf
    # The same as TensorFlow writes it, in 2.21 and in 2.18, each with its constant in float32.
    "gelu_root_half": lambda x: 0.5 * x * torch.erfc(-x * float(np.float32(np.sqrt(0.5)))),
    "gelu_root_two": lambda x: 0.5 * x * (1.0 + torch.erf(x / float(np.float32(np.sqrt(2.0))))),
    "softplus": F.softplus,
    "relu": torch.relu,
    "linear": lambda x: x,
}


class Reversal(torch.autograd.Function):
    """R_a: x forward, -a times the gradient backward, at every order (its backward is an ordinary torch product)."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


def reverse(x: torch.Tensor, strength: float) -> torch.Tensor:
    return Reversal.apply(x, strength)


def normalise(rows: torch.Tensor, method: str) -> torch.Tensor:
    """q = N(g) of rows (n, D), none of them zero."""
    if method == "l2":
        return rows / rows.square().sum(dim=1, keepdim=True).sqrt()
    if method == "batch":
        return rows / rows.square().sum(dim=1).mean().sqrt()
    assert method == "none"
    return rows


@dataclass(frozen=True)
class Network:
    """What the weights' names do not say: tasks in output order, activations, and how the alignment is set."""

    tasks: tuple[str, ...]
    activation: str = "tanh"
    discriminator_activation: str = "tanh"
    normalize: str = "batch"
    loss_weights: Mapping[str, float] = field(default_factory=dict)
    aligned: tuple[str, ...] | None = None  # the tasks that the discriminator sees; all of them
    reach: str = "all"
    per: str = "row"

    @property
    def seen(self) -> tuple[str, ...]:
        return self.aligned or self.tasks


@dataclass(frozen=True)
class Batch:
    """ids (B, F); labels and sample weights {task: (B,)}, NaN = no label; row_task (B,) indices into the tasks."""

    ids: np.ndarray
    labels: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    row_task: np.ndarray | None = None


@dataclass(frozen=True)
class Result:
    total: float  # J
    losses: dict[str, float]  # L_t
    alignment: float  # A
    correct: dict[str, np.ndarray]  # per task: whether D names it, for every row that D sees
    row_gradients: dict[str, np.ndarray]  # g_t (B, D)
    gradients: dict[str, np.ndarray]  # dJ / d variable: what the optimizers get
    alignment_gradients: dict[str, np.ndarray]  # dA / d variable, through the reversal


Weights = dict[str, torch.Tensor]


def tensors(arrays: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float64) -> Weights:
    return {name: torch.tensor(array, dtype=dtype, requires_grad=True) for name, array in arrays.items()}


def dense_stack(x: torch.Tensor, weights: Weights, prefix: str, activation: str) -> torch.Tensor:
    """An MLP of `prefix/<i>/kernel` (in, out) and `prefix/<i>/bias` (out,), the last layer linear."""
    depth = sum(name.startswith(f"{prefix}/") and name.endswith("/kernel") for name in weights)
    for i in range(depth):
        x = x @ weights[f"{prefix}/{i}/kernel"] + weights[f"{prefix}/{i}/bias"]
        if i < depth - 1:
            x = ACTIVATIONS[activation](x)
    return x


def row_loss(prediction: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy of logits (B, 1), softplus(z) - y z, or cross-entropy of logits (B, K) and classes (B,)."""
    if prediction.shape[1] == 1:
        z = prediction[:, 0]
        return F.softplus(z) - label * z
    chosen = prediction.gather(1, label.long()[:, None])[:, 0]
    return torch.logsumexp(prediction, dim=1) - chosen


def discriminate(network, weights, strength, shown):
    """A and, per task, whether D is right; `shown` is {task: rows of its gradient that are labelled} (n, D)."""
    entropies, correct = [], {}
    for index, task in enumerate(network.seen):
        rows = shown[task]
        rows = rows[(rows != 0).any(dim=1)]
        if len(rows) == 0:
            continue
        q = reverse(normalise(rows, network.normalize), strength)
        logits = dense_stack(q, weights, "discriminator", network.discriminator_activation)
        entropies.append((torch.logsumexp(logits, dim=1) - logits[:, index]).mean())
        correct[task] = (logits.argmax(dim=1) == index).numpy()
    alignment = torch.stack(entropies).mean() if entropies else weights["shared"].new_zeros(())
    return alignment, correct


def gradients_of(scalar: torch.Tensor, weights: Weights) -> Weights:
    if not scalar.requires_grad:
        return {name: torch.zeros_like(weight) for name, weight in weights.items()}
    found = torch.autograd.grad(scalar, list(weights.values()), retain_graph=True, allow_unused=True)
    return {n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(weights.items(), found, strict=True)}


def forward(network: Network, weights: Weights, batch: Batch, strength: float):
    """The whole step in order: s, towers, losses, row gradients, discriminator."""
    dtype = weights["shared"].dtype
    ids = torch.tensor(batch.ids, dtype=torch.long)
    shared = weights["shared"][ids]  # (B, F, d)
    if network.per == "row":
        shared = shared.reshape(len(ids), -1)
    losses, row_gradients, shown = {}, {}, {}
    for index, task in enumerate(network.tasks):
        tower_input = shared.reshape(len(ids), -1)
        if f"private/{task}" in weights:
            private = weights[f"private/{task}"][ids].reshape(len(ids), -1)
            tower_input = torch.cat([tower_input, private], dim=1)
        label = torch.tensor(batch.labels[task], dtype=dtype)
        w = torch.tensor(batch.weights.get(task, np.ones(len(ids))), dtype=dtype)
        labelled = ~torch.isnan(label) & (w != 0)
        mw = torch.where(labelled, w, torch.zeros_like(w))
        label = torch.where(labelled, label, torch.zeros_like(label))
        prediction = dense_stack(tower_input, weights, f"tower/{task}", network.activation)
        summed = (mw * row_loss(prediction, label)).sum()
        losses[task] = summed / mw.sum() if labelled.any() else torch.zeros_like(summed)
        (g,) = torch.autograd.grad(summed, shared, create_graph=True)
        row_gradients[task] = g
        own = labelled
        if batch.row_task is not None:
            own = own & (torch.tensor(batch.row_task) == index)
        shown[task] = g[own].reshape(-1, g.shape[-1])  # per="position": every position of a row is a row
    alignment, correct = discriminate(network, weights, strength, shown)
    return shared, losses, row_gradients, alignment, correct


def step(network: Network, weights: Weights, batch: Batch, strength: float = 1.0) -> Result:
    """Every number of one training step at these weights."""
    shared, losses, row_gradients, alignment, correct = forward(network, weights, batch, strength)
    task_total = sum(network.loss_weights.get(task, 1.0) * loss for task, loss in losses.items())
    aligned = gradients_of(alignment, weights)
    if network.reach == "shared" and alignment.requires_grad:
        (pull,) = torch.autograd.grad(alignment, shared, retain_graph=True)
        through = gradients_of((pull.detach() * shared).sum(), weights)
        aligned = {n: aligned[n] if n.startswith("discriminator/") else through[n] for n in weights}
    plain = gradients_of(task_total, weights)

    def arrays(found: Weights) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in found.items()}

    return Result(
        total=(task_total + alignment).item(),
        losses={task: loss.item() for task, loss in losses.items()},
        alignment=alignment.item(),
        correct=correct,
        row_gradients=arrays(row_gradients),
        gradients=arrays({name: plain[name] + aligned[name] for name in weights}),
        alignment_gradients=arrays(aligned),
    )


@dataclass(frozen=True)
class Trained:
    results: list[Result]  # one a step, at the weights before it
    weights: dict[str, np.ndarray]  # after the last step


def train(
    network: Network,
    start: Mapping[str, np.ndarray],
    batches: Sequence[Batch],
    strengths: Sequence[float],
    optimizer: type[torch.optim.Optimizer],
    *,
    learning_rate: float,
    discriminator_learning_rate: float,
    **settings: object,
) -> Trained:
    """Train with two optimizers; the discriminator's descends A itself, since the reversal stands above D."""
    weights = tensors(start)
    model = [w for name, w in weights.items() if not name.startswith("discriminator/")]
    adversary = [w for name, w in weights.items() if name.startswith("discriminator/")]
    optimizers = [optimizer(model, lr=learning_rate, **settings)]
    optimizers.append(optimizer(adversary, lr=discriminator_learning_rate, **settings))
    results = []
    for batch, strength in zip(batches, strengths, strict=True):
        result = step(network, weights, batch, strength)
        for name, weight in weights.items():
            weight.grad = torch.tensor(result.gradients[name])
        for each in optimizers:
            each.step()
        results.append(result)
    return Trained(results, {name: weight.detach().numpy().copy() for name, weight in weights.items()})
