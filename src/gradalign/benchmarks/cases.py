"""The cases: which models are trained, on what. Naming them loads nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradalign.errors import UserError, nearest

__all__ = ["CASES", "Case", "Network", "cases_named", "smaller"]


@dataclasses.dataclass(frozen=True)
class Network:
    """A multi-task model on categorical fields, from embeddings to one logit a task.

    Args:
        sizes: ids of each field.
        dim: width of a shared embedding.
        private_dim: width of a private embedding; 0 for none.
        encoder: widths of dense layers below the shared tensor.
        experts: number of experts above the shared tensor, mixed by a gate for each task; 0 for none.
        expert_units: widths of an expert's layers.
        towers: widths of a tower's hidden layers.
        activation: of all hidden layers.
        tasks: number of tasks.
    """

    sizes: tuple[int, ...]
    dim: int = 16
    private_dim: int = 0
    encoder: tuple[int, ...] = ()
    experts: int = 0
    expert_units: tuple[int, ...] = ()
    towers: tuple[int, ...] = (256, 128, 64)
    activation: str = "relu"
    tasks: int = 2

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks' names.

        >>> Network((10,)).task_names
        ('task_0', 'task_1')
        """
        return tuple(f"task_{number}" for number in range(self.tasks))

    @property
    def shared_width(self) -> int:
        """Entries of the shared tensor's rows."""
        return self.encoder[-1] if self.encoder else self.dim * len(self.sizes)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured together.

    Args:
        name: of the case, as `--cases` takes it.
        what: one line for readers.
        kind: "steps", "tables", "input" or "start-up".
        network: the model; `None` takes that of the bundled config, with its data.
        batch: rows of a batch.
        alignment: arguments of `AdversarialAlignment` that are not the defaults.
        row_limit: at most this many rows of a data set; `None` for all.
    """

    name: str
    what: str
    kind: str = "steps"
    network: Network | None = None
    batch: int = 4096
    alignment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    row_limit: int | None = None


_RANKING = Network((20_000,) * 26)
_ABOVE = "26 fields × 16, 20,000 ids a field, batch 4,096"
_TOWERS = "towers 256-128-64"


def _ranking(**changes: Any) -> Network:
    return dataclasses.replace(_RANKING, **changes)


CASES = {
    case.name: case
    for case in (
        Case("ranking", f"{_ABOVE}, {_TOWERS}, ReLU, two tasks, normalize=batch", network=_RANKING),
        Case("ranking-gelu", "ranking with GELU", network=_ranking(activation="gelu")),
        Case("ranking-4-tasks", "ranking with four tasks", network=_ranking(tasks=4)),
        Case("ranking-8-tasks", "ranking with eight tasks", network=_ranking(tasks=8)),
        Case(
            "deep-encoder",
            "ranking with GELU and dense layers 1024-512-256 below the shared tensor",
            network=_ranking(encoder=(1024, 512, 256), activation="gelu"),
        ),
        Case(
            "mmoe",
            "ranking with GELU, 8 experts 256-128 above the shared embeddings, a gate a task, towers 64-32",
            network=_ranking(experts=8, expert_units=(256, 128), towers=(64, 32), activation="gelu"),
        ),
        Case("census", "the bundled config's model, alignment and data", batch=1024, alignment={"reach": "shared"}),
        Case(
            "tables",
            "three tables × 16, batch 4,096, aligned step, towers 256-128-64, ReLU, two tasks",
            kind="tables",
            network=Network((5_000_000,) * 3),
        ),
        Case("input", "one epoch of the bundled config: what fit takes beside its steps", kind="input", batch=1024),
        Case(
            "start-up",
            "fresh processes: the command line's help, and the first step",
            kind="start-up",
            network=_RANKING,
        ),
    )
}


def cases_named(names: list[str]) -> list[Case]:
    """Return the cases of these names; all where none is named.

    >>> [case.name for case in cases_named(["mmoe"])]
    ['mmoe']

    Raises:
        UserError: for a name that is no case's.
    """
    for name in names:
        if name not in CASES:
            raise UserError(f'There is no case "{name}"; the cases are {", ".join(CASES)}.{nearest(name, CASES)}')
    return [CASES[name] for name in dict.fromkeys(names)] or list(CASES.values())


def smaller(case: Case) -> Case:
    """Return `case` at a size that takes no time: the same code and other numbers, for trying the command out.

    >>> smaller(CASES["ranking"]).network.sizes
    (40, 40, 40)
    """
    network = case.network and dataclasses.replace(
        case.network,
        sizes=(40,) * 3,
        dim=4,
        encoder=tuple(units // 64 for units in case.network.encoder),
        experts=min(case.network.experts, 2),
        expert_units=tuple(units // 32 for units in case.network.expert_units),
        towers=tuple(units // 16 for units in case.network.towers),
    )
    return dataclasses.replace(case, network=network, batch=64, row_limit=640)
