"""What `check_second_order` found: norms, verdicts, and sentences that say what is dead and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradalign.diagnostics.discriminator_checks import LabelLeak
from gradalign.diagnostics.path_layers import PathLayer, path_sentences

__all__ = ["SecondOrderReport", "TaskNorms"]

# Far under what smooth towers give (5e-3 of the first order) and far over rounding (3e-12 where the path is dead).
DEAD_BELOW = 1e-6


@dataclass(frozen=True)
class TaskNorms:
    """One task's Euclidean gradient norms at the shared tensor.

    Attributes:
        rows: gradient rows that the alignment sees: labelled and not zero.
        first: norm of `dL_t/ds`.
        second: norm of the part of `dA/ds` that goes through this task's gradient.
        labelled: rows that have the task's label.
        bends: whether the task's gradient itself, before the normalisation, changes with the shared tensor.
    """

    task: str
    rows: int
    first: float
    second: float
    labelled: int
    bends: bool = True

    @property
    def is_dead(self) -> bool:
        """The task has gradients, yet the alignment sends nothing through them."""
        return self.rows > 0 and self.second <= DEAD_BELOW * self.first

    @property
    def is_flat(self) -> bool:
        """The task has labels, yet its loss does not change with the shared tensor."""
        return self.labelled > 0 and self.first == 0.0


@dataclass
class SecondOrderReport:
    """What `check_second_order` found; `str()` of it is the text.

    Attributes:
        tasks: `{task: TaskNorms}` of the aligned tasks.
        variables: `{variable path: (first, second)}`, norms of `d sum c_t L_t` and of `dA`.
        first, second: norms at the shared tensor, all tasks together.
        agrees: whether central differences of `A` along the shared tensor agree with its gradient; `None` where they
            were not taken or tell nothing.
        difference: largest deviation found, relative to the norm of `dA/ds`.
        normalize: the alignment's normalisation.
        reverses: whether the differences have the sign that a reversal gives; `None` where they were not taken.
        is_coarse: whether the base computes in float16 or bfloat16, whose rounding hides differences; none are taken.
        jumps: whether differences were taken and are undecided, because the gradients jump (ReLU and the like).
        drowned: whether differences would be smaller than the rounding of the loss.
        towers: `{path: why it takes the general path}` of each `gradalign.layers.Tower`; `None` for the fast path.
        mixes_rows: whether the alignment loss changes with rows that are left out.
        leak: what the labels alone give away; `None` for tasks that are not binary.
        path_layers: layers between the shared tensor and a loss whose second derivative is wrong or missing.
        has_discriminator: whether the alignment has weights of its own, which can be saturated.
        can_keep_lengths: whether the alignment takes another `normalize` than unit length.
        second_order: whether the alignment is meant to go back along the gradients.
    """

    tasks: dict[str, TaskNorms]
    first: float
    second: float
    normalize: str
    variables: dict[str, tuple[float, float]] = field(default_factory=dict)
    agrees: bool | None = None
    difference: float | None = None
    reverses: bool | None = None
    is_coarse: bool = False
    jumps: bool = False
    drowned: bool = False
    towers: dict[str, str | None] = field(default_factory=dict)
    mixes_rows: bool = False
    leak: LabelLeak | None = None
    path_layers: list[PathLayer] = field(default_factory=list)
    has_discriminator: bool = True
    can_keep_lengths: bool = True
    second_order: bool = True

    @property
    def second_to_first(self) -> float:
        """Norm of `dA/ds` at strength 1 over the norm of `d sum c_t L_t / ds`; 0 where the latter is 0."""
        return self.second / self.first if self.first else 0.0

    @property
    def ok(self) -> bool:
        """No dead path, and finite differences do not disagree."""
        return not self.sentences()

    def sentences(self) -> list[str]:
        """Return what is wrong and how to mend it, one sentence each; empty where all is well."""
        if len(self.tasks) == 1:
            return [
                f'The alignment has one task, "{next(iter(self.tasks))}", so it has nothing to align and no effect; '
                "give it a second task, or train without an alignment."
            ]
        found = []
        dead = [norms for norms in self.tasks.values() if norms.is_dead and self.second_order]
        what = "There is a dead path: the alignment cannot reach the shared representation through"
        # With "l2" a piecewise-linear tower is enough; a loss without curvature is its own reason.
        straight = [norms.task for norms in dead if not norms.bends]
        bent = [norms.task for norms in dead if norms.bends]
        if turning := bent if self.normalize == "l2" else []:
            found.append(
                f'{what} {_tasks(turning)}, because with normalize="l2" and a piecewise-linear tower (ReLU or linear) '
                "the direction of the gradient does not change with the shared tensor; use smooth activations such as "
                "gelu in the tower" + (', or normalize="batch".' if self.can_keep_lengths else ".")
            )
        elif bent and not self.has_discriminator:
            found.append(
                f"{what} {_tasks(bent)}, because its loss is flat there: the tasks' gradients are alike already, or so "
                "far apart that the loss no longer changes with their distance; alignment_loss tells which, and for a "
                "kernel a larger bandwidth helps."
            )
        elif bent:
            found.append(
                f"{what} {_tasks(bent)}, because the discriminator is saturated: it is sure of every row, so its loss "
                "hands no gradient back; lower its learning rate with discriminator_optimizer, or raise the weight."
            )
        if straight:
            found.append(
                f"{what} {_tasks(straight)}, because its gradient does not change with the shared tensor: the loss has "
                "no curvature (such as hinge or mean absolute error) and the tower is piecewise linear; use smooth "
                "activations such as gelu, or a loss with curvature."
            )
        if flat := [norms.task for norms in self.tasks.values() if norms.is_flat]:
            found.append(
                f"The loss of {_tasks(flat)} is flat in this batch: labels, but no gradient at the shared tensor, "
                "as where predictions are saturated or beyond a hinge's margin; start from smaller weights, or give "
                "the loss logits instead of probabilities."
            )
        silent = [norms.task for norms in self.tasks.values() if norms.rows == 0]
        if len(silent) == len(self.tasks):
            found.append("No task has a labelled row with a gradient in this batch, so there is nothing to align.")
        if self.mixes_rows:
            found.append(
                "The discriminator mixes rows: its loss changes with rows that are left out because they have no label "
                "or no gradient, whose zeros give the task away; use one that judges each row by itself, without batch "
                "normalisation."
            )
        found += path_sentences(self.path_layers)
        if self.reverses is False:
            found.append(
                "The reversal does not reverse: the shared tensor descends the discriminator's loss, which makes the "
                "tasks easier to tell apart; pass the gradients through gradalign.reverse_gradient, by position."
            )
        elif self.agrees is False:
            found.append(
                "The second-order gradient is wrong: finite differences of the alignment loss deviate by "
                f"{self.difference:.0%} of its norm at the shared tensor; look for a layer between the shared tensor "
                "and a loss that stops gradients inside, such as Keras' own LayerNormalization or, while it trains, "
                "BatchNormalization, and take it from gradalign.layers."
            )
        return found

    def __str__(self) -> str:
        lines = [
            "Second-order check (reversal at strength 1)",
            "",
            f"  {'task':<24}{'rows':>8}{'|dL/ds|':>12}{'|dA/ds|':>12}",
        ]
        for norms in self.tasks.values():
            lines.append(f"  {norms.task:<24}{norms.rows:>8}{norms.first:>12.3e}{norms.second:>12.3e}")
        lines.append(
            f"  {'all tasks':<24}{'':>8}{self.first:>12.3e}{self.second:>12.3e}   ratio {self.second_to_first:.3g}"
        )
        if self.variables:
            lines += ["", f"  {'variable':<56}{'|d sum cL|':>12}{'|dA|':>12}"]
            lines += [
                f"  {path[:54]:<56}{first:>12.3e}{second:>12.3e}" for path, (first, second) in self.variables.items()
            ]
        if self.agrees is not None:
            verdict = "agree" if self.agrees else "DISAGREE"
            deviation = f"{self.difference:.2g} of |dA/ds|" if self.difference else "below rounding"
            lines += ["", f"  Finite differences {verdict}: largest deviation {deviation}."]
        elif self.jumps:
            lines += [
                "",
                f"  Finite differences are undecided: they deviate by {self.difference:.2g} of |dA/ds|, and ReLU or "
                "the like lets the gradients jump, which they show and a derivative leaves out; a check with a smooth "
                "activation, such as gelu, tells.",
            ]
        elif self.drowned:
            lines += ["", "  Finite differences were not taken: |dA/ds| is too small beside the rounding of the loss."]
        elif self.is_coarse and self.second_order:
            lines += ["", "  Finite differences were not taken: they need float32, and half floats round them away."]
        lines += [""] if self.towers else []
        for path, reason in self.towers.items():
            lines += [f'  Tower "{path}" takes the {"fast path" if reason is None else f"general path: {reason}"}.']
        if self.leak is not None:
            lines += ["", str(self.leak)]
        well = (
            "The alignment reaches the shared tensor."
            if self.jumps or self.drowned
            else ("All is well: the alignment reaches the shared tensor.")
        )
        if not self.second_order:
            well = (
                "All is well: this alignment works at first order, by design. It changes the tasks' gradients on their "
                "way into the shared tensor, and its loss sends none back along them."
            )
        lines += ["", *(self.sentences() or [well])]
        return "\n".join(lines)


def _tasks(names: list[str]) -> str:
    """Return `task "a"` or `tasks "a", "b"`."""
    return ("tasks " if len(names) > 1 else "task ") + ", ".join(f'"{name}"' for name in names)
