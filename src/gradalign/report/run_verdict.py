"""What the alignment did in a run, in words, from the run's files."""

from __future__ import annotations

from gradalign.report.numbers import as_percent, as_signed
from gradalign.report.run_files import RunFiles

__all__ = ["alignment_share", "run_verdict"]

# As in `gradalign.callbacks.AdversaryGuard`, which acts where these sentences complain.
PINNED, CHANCE_MARGIN, MOST_SHARE = 0.98, 0.02, 0.5
DEAD_BELOW = 1e-6  # as in `gradalign.check_second_order`


def run_verdict(run: RunFiles) -> list[str]:
    """Return sentences: the alignment's share, the discriminator and the probe against both chances, the cosines."""
    method = str(run.metrics["alignment"].get("method"))
    if method == "none":
        said = ["This run aligned nothing (alignment.method: none): it is the plain sum of the tasks' losses."]
    else:
        said = [_share(run), _discriminator(run, method)]
    return [*said, *_probe(run, is_aligned=method != "none"), *_cosines(run)]


def alignment_share(run: RunFiles) -> tuple[float | None, str]:
    """Return the alignment's share of the gradient at the shared tensor at the end, and where the figure is from."""
    share = run.of_alignment("share_of_gradient")
    if share is not None:
        return share, "mean over the last epoch's looks at the gradients"
    ratio, strength = run.of_alignment("second_to_first_order_ratio"), run.of_alignment("strength")
    if ratio is None or strength is None:
        return None, ""
    return ratio * strength / (1.0 + ratio * strength), "one batch of training rows at the end"


def _share(run: RunFiles) -> str:
    share, source = alignment_share(run)
    ratio = run.of_alignment("second_to_first_order_ratio")
    if share is None:
        return "How large the alignment's share of the gradient was is not in the run's files."
    if ratio is not None and ratio <= DEAD_BELOW:
        return (
            "The alignment did not reach the shared representation, a dead path: at strength 1 its gradient there was "
            f"{ratio:.1e} of the tasks' own; `gradalign check` says why."
        )
    said = f"The alignment made up {as_percent(share)} of the gradient at the shared representation ({source})"
    if share > MOST_SHARE:
        return f"{said}, which is more than the tasks themselves: a smaller alignment.weight leaves them in charge."
    return f"{said}."


def _discriminator(run: RunFiles, method: str) -> str:
    accuracy, blind = run.of_alignment("discriminator_accuracy"), run.of_alignment("chance")
    if accuracy is None or blind is None:
        return f"The alignment {method} has no discriminator; the probe says whether the gradients can be told apart."
    aware = run.of_alignment("label_aware_chance")
    against = f"where a blind guess names {as_percent(blind)}" + (
        " (what the labels alone give away was not recorded)"
        if aware is None
        else f" and the labels alone give away {as_percent(aware)}"
    )
    said = f"In the last epoch the discriminator named the task of {as_percent(accuracy)} of the gradients, {against}: "
    if accuracy >= PINNED:
        return said + (
            "it is pinned, and a saturated discriminator hands back next to no gradient. A lower "
            "alignment.discriminator_learning_rate or a larger alignment.weight may free it."
        )
    if accuracy <= blind + CHANCE_MARGIN:
        return said + "it is at chance. Either the gradients are alike, or it has not learnt; the probe tells which."
    if aware is not None and accuracy <= aware + CHANCE_MARGIN:
        return said + "no better than the labels alone allow, which says nothing against the representation."
    return said + "it still tells the tasks' gradients apart."


def _probe(run: RunFiles, is_aligned: bool) -> list[str]:
    if run.probe is None:
        return ["No probe was run, so whether a new classifier can tell the tasks' gradients apart is not known."]
    said = [str(run.probe.get("verdict", ""))] if run.probe.get("verdict") else []
    if is_aligned and _was_at_a_loss(run):
        named, accuracy = run.of_alignment("discriminator_accuracy"), run.of_probe("accuracy")
        said.append(
            "So the discriminator was at a loss, and the gradients were not made alike: a new classifier names "
            f"{as_percent(accuracy)} of them, where the run's own named {as_percent(named)}."
        )
    return said


def _was_at_a_loss(run: RunFiles) -> bool:
    """Whether the run's discriminator guessed where a new classifier does not."""
    figures = (
        run.of_alignment("discriminator_accuracy"),
        run.of_alignment("chance"),
        run.of_probe("label_aware_chance"),
    )
    known = [found for found in (*figures, run.pair_of_probe("interval")[0]) if found is not None]
    if len(known) < 4:
        return False
    named, blind, aware, lowest = known
    return named <= max(blind, aware) + CHANCE_MARGIN and lowest > aware


def _cosines(run: RunFiles) -> list[str]:
    said = []
    for one, other in run.pairs:
        known = [value for _, value in run.curve(f"{one}_{other}_gradient_cosine") if value is not None]
        if known:
            what = f"The mean cosine of the gradients of {one} and {other}"
            first, last = as_signed(known[0], 3), as_signed(known[-1], 3)
            ends = f"went from {first} in the first epoch to {last} in the last" if len(known) > 1 else f"was {first}"
            said.append(f"{what} {ends}.")
    return said
