"""Writes `docs/second-order-support.md`: which layers of Keras are right at second order, in which modes.

    python -m gradalign.diagnostics.second_order_support docs/second-order-support.md

measures every layer of `layer_table` in every mode, some minutes, and writes the page.
"""

from __future__ import annotations

import os
import sys
from itertools import groupby
from pathlib import Path

from gradalign.diagnostics.layer_measure import MODES, Measured, measure
from gradalign.diagnostics.layer_table import CASES, Case

__all__ = ["RIGHT", "chunks", "main", "page", "verdicts"]

RIGHT = "right"
_MEAN = "its mean counts as a constant in the gradient"
_CUDNN = "may run with cuDNN on a GPU, which has no second derivative"
_MENDS = {
    _MEAN: "take the layer of that name from `gradalign.layers`, or let `ga.make_twice_differentiable` swap it",
    _CUDNN: "take the layer of that name from `gradalign.layers`, or `use_cudnn=False`",
    "TensorFlow has no second derivative of it": "take another activation, such as `tanh`",
    "XLA compiles no second derivative of it": (
        "compile with `jit_compile=False`, or take average or global max pooling"
    ),
}
_INTRO = """\
# Layers and their second-order gradients

The alignment's gradient is a gradient of a gradient. Each layer below was measured where a tower's would stand, between
the shared tensor and a loss, in float64: the gradient of a function of the task's gradient, by the shared tensor and by
the layer's weights, against central differences. *Right* means that they agree to one part in a million. Where a layer
computes the same in training and inference, one measurement stands for both. LSTM and GRU layers that Keras may run
with cuDNN are refused by their configuration, on any device; mind that Keras does not save `use_cudnn`, while the
layers in `gradalign.layers` never use it.

`fit` and `ga.check_second_order` name a layer of your model that is refused here, and the mend.

This page is written by `python -m gradalign.diagnostics.second_order_support docs/second-order-support.md`.
"""

Verdicts = dict[tuple[str, bool], str]


def chunks(cases: list[Case]) -> list[list[Case]]:
    """Return the cases that are measured, in lists that are measured together; cuDNN is judged by configuration."""
    found: list[list[Case]] = []
    for _, group in groupby(cases, key=lambda case: case.group):
        together = []
        for case in group:
            if not case.cudnn:
                (found.append([case]) if case.alone else together.append(case))
        found += [together] if together else []
    return found


def verdicts(case: Case, measured: dict[tuple[str, bool], Measured]) -> Verdicts:
    """Return `{(mode, training): "right" or why it is refused}`.

    Raises:
        ValueError: for a deviation or an error that is none of the known ones.
    """
    return {key: _verdict(case, result) for key, result in measured.items()}


def _verdict(case: Case, result: Measured) -> str:
    if result.is_right:
        return RIGHT
    if result.error.startswith("LookupError"):
        return "TensorFlow has no second derivative of it"
    if result.error.startswith("InvalidArgumentError") and "unsupported operations" in result.error:
        return "XLA compiles no second derivative of it"
    if case.group == "Normalisation: Keras" and not result.error and result.second > 1e-6:
        return _MEAN
    raise ValueError(f"{case.name}: {result.error or f'deviates by {result.first:.1g} and {result.second:.1g}'}.")


def page(found: dict[str, Verdicts]) -> str:
    """Return the text of the page from `{case name: verdicts}`; cases with cuDNN are added by their configuration."""
    modes = [(mode, training) for training in (True, False) for mode in MODES]
    found = {c.name: dict.fromkeys(modes, _CUDNN) if c.cudnn else found[c.name] for c in CASES}
    refused = {name: {m: v for m, v in of_case.items() if v != RIGHT} for name, of_case in found.items()}
    refused = {name: of_case for name, of_case in refused.items() if of_case}
    count = sum(map(len, refused.values()))
    lines = [
        _INTRO,
        f"{len(found)} layers, each in {len(modes)} modes: {len(found) * len(modes) - count} right, {count} refused, "
        f"in {len(refused)} layers.",
        "",
        "## What is refused",
        "",
        "| layer | where | why | what to do |",
        "| --- | --- | --- | --- |",
    ]
    for name, of_case in refused.items():
        why = next(iter(of_case.values()))
        where = (
            "all modes" if len(of_case) == len(modes) else ", ".join(_title(*mode) for mode in modes if mode in of_case)
        )
        lines.append(f"| {_code(name)} | {where} | {why} | {_MENDS[why]} |")
    for group, cases in groupby(CASES, key=lambda case: case.group):
        lines += ["", f"## {group}", "", "| layer | " + " | ".join(_title(*mode) for mode in modes) + " |"]
        lines.append("| --- |" + " --- |" * len(modes))
        for case in cases:
            cells = [RIGHT if found[case.name][mode] == RIGHT else "refused" for mode in modes]
            lines.append(f"| {_code(case.name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _title(mode: str, training: bool) -> str:
    return f"{mode.replace('jit_compile', 'XLA')} {'training' if training else 'inference'}"


def _code(name: str) -> str:
    layer, comma, rest = name.partition(", ")
    return f"`{layer}`{comma}{rest}"


def main(path: str) -> None:
    """Measure everything and write the page to `path`."""
    found = {}
    for chunk in chunks(CASES):
        measured = measure(chunk)
        found.update({case.name: verdicts(case, measured[case.name]) for case in chunk})
    target = Path(path)
    temporary = target.with_name(f".writing-{target.name}")
    temporary.write_text(page(found), encoding="utf-8")
    os.replace(temporary, target)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["docs/second-order-support.md"])
