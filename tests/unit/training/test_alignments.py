"""The alignment that a config names, with its options."""

from __future__ import annotations

import pytest

import gradalign as ga
from gradalign.alignment import Wasserstein
from gradalign.training.build import _alignment
from gradalign.training.config import validate

ADVERSARIAL = {
    "objective": "confusion",
    "label_smoothing": 0.1,
    "spectral_norm": True,
    "discriminator_steps": 2,
    "normalize": "l2",
    "balance_labels": True,
}
METHODS = {
    "adversarial": (ga.AdversarialAlignment, ADVERSARIAL),
    "great": (ga.GREATAlignment, {**ADVERSARIAL, "anchor": 0.5, "fraction": 0.5}),
    "cosine": (ga.CosineAlignment, {"sign_free": True, "fraction": 0.5, "reach": "shared"}),
    "mmd": (ga.MMDAlignment, {"kernel": "laplacian", "bandwidth": 2.0, "every": 3}),
    "moments": (ga.MomentAlignment, {"mean": 0.0, "covariance": 3.0, "schedule": "linear", "tasks": ["a", "b"]}),
}


def made(**alignment):
    tasks = {task: {"label": f"label_{task}", "positive": 1} for task in ("a", "b", "c")}
    config = {"name": "shop", "data": {"train": "x.csv", "test": "y.csv"}, "tasks": tasks, "alignment": alignment}
    return _alignment(validate(config), total_steps=7)


@pytest.mark.parametrize("method", METHODS)
def test_every_option_reaches_the_alignment(method):
    kind, options = METHODS[method]
    alignment = made(method=method, weight=0.3, **options)
    assert type(alignment) is kind and alignment.weight == 0.3 and int(alignment.total_steps) == 7
    assert {name: getattr(alignment, name) for name in options} == options


def test_the_penalty_is_one_of_the_objective():
    objective = made(objective="wasserstein", gradient_penalty=2.0).objective
    assert type(objective) is Wasserstein and objective.gradient_penalty == 2.0


def test_none_is_none():
    assert made(method="none", bandwidth=2.0) is None
