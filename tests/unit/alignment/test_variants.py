"""Every alignment and every objective of the adversary: values and gradients against PyTorch, and what all share."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
import torch.nn.functional as F

from gradalign.alignment import (
    AdversarialAlignment,
    CosineAlignment,
    GREATAlignment,
    MMDAlignment,
    MomentAlignment,
    Wasserstein,
)
from gradalign.alignment.objectives import OBJECTIVES
from gradalign.alignment.objectives.wasserstein import _between_tasks
from gradalign.alignment.rows import TaskRows
from gradalign.errors import UserError

from . import asserts
from .asserts import TASKS, WIDTH, value_and_gradients
from .test_adversarial import Smooth

WEIGHT = 0.7


def adversary(objective):
    def make(dtype="float64", **arguments):
        given = {"weight": WEIGHT, "schedule": 1.0, "objective": objective, "discriminator": Smooth(dtype=dtype)}
        return AdversarialAlignment(**{**given, **arguments})

    return make


def direct(kind, **settings):
    return lambda dtype=None, **arguments: kind(**{"weight": WEIGHT, "schedule": 1.0, **settings, **arguments})


def great(dtype="float64", **arguments):
    """With scales that are not ones any more, and free: an anchor pulls at them without any rows, too."""
    given = {"weight": WEIGHT, "schedule": 1.0, "anchor": 0.0, "discriminator": Smooth(dtype=dtype), **arguments}
    alignment = GREATAlignment(**given)
    if alignment.tasks is None:
        alignment.build_for(list(TASKS), [[None, WIDTH]], dtype)
        alignment.gradient_layers.assign(np.linspace(0.5, 2.0, len(TASKS))[:, None] * np.linspace(-1.0, 2.0, WIDTH))
    return alignment


# Without its penalty, which draws rows at random: that one is looked at by itself.
ADVERSARIES = {name: adversary(name) for name in OBJECTIVES if name not in ("reversal", "wasserstein")}
ADVERSARIES["wasserstein"] = adversary(Wasserstein(gradient_penalty=0.0))
DIRECT = {
    "cosine": direct(CosineAlignment),
    "gaussian": direct(MMDAlignment),
    "laplacian": direct(MMDAlignment, kernel="laplacian"),
    "moments": direct(MomentAlignment, mean=0.5, covariance=2.0),
}
VARIANTS = {**ADVERSARIES, **DIRECT, "great": great}

# --- against PyTorch ------------------------------------------------------------------------------------------------

MASKS = {"b": [True, False, True, True, False, True], "c": [False, True, True, True, True, True]}


def rows_in_torch(normalize):
    """`{task: gradient}` as leaves, and `{task: its normalised labelled rows}`."""
    leaves = {task: torch.tensor(g.numpy(), requires_grad=True) for task, g in asserts.sampled().items()}
    rows = {}
    for task, g in leaves.items():
        kept = g[torch.tensor(MASKS.get(task, [True] * len(g)))]
        length = (
            kept.square().sum(1).mean().sqrt() if normalize == "batch" else kept.square().sum(1, keepdim=True).sqrt()
        )
        rows[task] = kept / length
    return leaves, rows


def cross_entropies(scores, smoothing):
    return [
        F.cross_entropy(z, torch.full((len(z),), number), label_smoothing=smoothing) for number, z in enumerate(scores)
    ]


def critics(scores):
    """W: for each task its critic's mean over its own rows, less the mean of its means over the others'."""
    means = torch.stack([z.mean(0) for z in scores])
    terms = [means[u, u] - means[[t for t in range(3) if t != u], u].mean() for u in range(3)]
    return torch.stack(terms).mean()


def half_square(scores, target):
    return torch.stack([0.5 * (z - target(n)).square().sum(1).mean() for n, z in enumerate(scores)]).mean()


def one_hot(number, smoothing=0.0):
    return (1 - smoothing) * torch.eye(3, dtype=torch.float64)[number] + smoothing / 3


def mean(terms):
    return torch.stack(list(terms)).mean()


# Of each objective the discriminator's loss, with smoothing, and the model's.
IN_TORCH = {
    "reversal": (lambda z, s: mean(cross_entropies(z, s)), lambda z, s: -mean(cross_entropies(z, s))),
    "non_saturating": (
        lambda z, s: mean(cross_entropies(z, s)),
        lambda z, s: mean(-torch.log(1 - torch.softmax(x, 1)[:, n]).mean() for n, x in enumerate(z)),
    ),
    "confusion": (
        lambda z, s: mean(cross_entropies(z, s)),
        lambda z, s: mean(-torch.log_softmax(x, 1).mean(1).mean() for x in z),
    ),
    "least_squares": (
        lambda z, s: half_square(z, lambda n: one_hot(n, s)),
        lambda z, s: half_square(z, lambda n: 1 / 3),
    ),
    "wasserstein": (lambda z, s: -critics(z), lambda z, s: critics(z)),
}


SMOOTHING = {"reversal": 0.2, "non_saturating": 0.0, "confusion": 0.1, "least_squares": 0.2, "wasserstein": 0.0}


def test_critics_have_no_targets_to_smooth():
    with pytest.raises(UserError, match=r"label_smoothing .*Received 0\.2"):
        adversary("wasserstein")(label_smoothing=0.2)


@pytest.mark.parametrize(("objective", "smoothing"), SMOOTHING.items())
def test_each_side_gets_the_gradient_of_its_own_loss(objective, smoothing):
    make = ADVERSARIES.get(objective, adversary(objective))
    alignment = make(label_smoothing=smoothing)
    value, at_grads, at_weights = value_and_gradients(alignment, asserts.sampled(), MASKS)

    leaves, rows = rows_in_torch("batch")
    hidden, logits = (
        [torch.tensor(w.numpy(), requires_grad=True) for w in layer.weights]
        for layer in (alignment.discriminator.hidden, alignment.discriminator.logits)
    )
    scores = [torch.tanh(q @ hidden[0] + hidden[1]) @ logits[0] + logits[1] for q in rows.values()]
    own, of_model = (loss(scores, smoothing) for loss in IN_TORCH[objective])
    wanted_at_weights = torch.autograd.grad(own, [*hidden, *logits], retain_graph=True)
    wanted_at_grads = torch.autograd.grad(of_model, list(leaves.values()))
    assert float(value) == pytest.approx(own.item(), rel=1e-10)
    for mine, wanted in zip(at_weights, wanted_at_weights, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-13)
    for task, wanted in zip(TASKS, wanted_at_grads, strict=True):
        np.testing.assert_allclose(at_grads[task], WEIGHT * wanted, rtol=1e-9, atol=1e-13)
    # What checks take finite differences of, at strength 1.
    assert float(alignment.model_loss(alignment.rows_of(asserts.sampled(), MASKS))) == pytest.approx(of_model.item())
    assert float(alignment.discriminator_loss(asserts.sampled(), MASKS)) == pytest.approx(own.item())


def pairs():
    return [(t, u) for t in TASKS for u in TASKS if t < u]


def cosine_in_torch(leaves, rows):
    everywhere = {task: MASKS.get(task, [True] * 6) for task in TASKS}
    common = {(t, u): torch.tensor(everywhere[t]) & torch.tensor(everywhere[u]) for t, u in pairs()}
    return mean((1 - F.cosine_similarity(leaves[t][kept], leaves[u][kept])).mean() for (t, u), kept in common.items())


def moments_in_torch(leaves, rows):
    mu = {task: q.mean(0) for task, q in rows.items()}
    cov = {task: torch.cov(q.T, correction=0) for task, q in rows.items()}
    return mean(0.5 * (mu[t] - mu[u]).square().sum() + 2.0 * (cov[t] - cov[u]).square().sum() for t, u in pairs())


def mmd_in_torch(kernel, unit):
    def k(x, y):
        difference = x[:, None] - y[None]
        squared = difference.square().sum(-1)
        # The root's derivative is infinite at 0, and what it is multiplied with there is 0.
        root = torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)
        parts = [
            torch.exp(-squared / (2 * (s * unit) ** 2)) if kernel == "gaussian" else torch.exp(-root / (s * unit))
            for s in (0.25, 0.5, 1.0, 2.0, 4.0)
        ]
        return torch.stack(parts).mean(0).mean()

    return lambda leaves, q: mean(k(q[t], q[t]) + k(q[u], q[u]) - 2 * k(q[t], q[u]) for t, u in pairs())


def assert_as_in_torch(alignment, reference, normalize):
    value, at_grads, _ = value_and_gradients(alignment, asserts.sampled(), MASKS)
    leaves, rows = rows_in_torch(normalize)
    wanted = reference(leaves, rows)
    at_leaves = torch.autograd.grad(wanted, list(leaves.values()))
    assert float(value) == pytest.approx(wanted.item(), rel=1e-9)
    for task, at_leaf in zip(TASKS, at_leaves, strict=True):
        np.testing.assert_allclose(at_grads[task], WEIGHT * at_leaf, rtol=1e-8, atol=1e-12)
    assert float(alignment.model_loss(alignment.rows_of(asserts.sampled(), MASKS))) == pytest.approx(wanted.item())


@pytest.mark.parametrize("normalize", ["batch", "l2"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd_with_a_bandwidth(kernel, normalize):
    alignment = DIRECT[kernel](bandwidth=0.9, normalize=normalize)
    assert_as_in_torch(alignment, mmd_in_torch(kernel, 0.9), normalize)


def test_mmd_with_the_median_distance():
    """Each task weighs the same: of six, four and five rows, each pair weighs as its rows do."""
    _, rows = rows_in_torch("batch")
    q = torch.cat(list(rows.values())).detach()
    weight = torch.cat([torch.full((len(of_task),), 1 / len(of_task)) for of_task in rows.values()])
    distance, weight = torch.cdist(q, q).flatten(), torch.outer(weight, weight).flatten()
    distance, weight = distance[distance > 1e-9], weight[distance > 1e-9]
    order = distance.argsort()
    below = weight[order].cumsum(0)
    median = distance[order][int((below < below[-1] / 2).sum())].item()
    assert_as_in_torch(DIRECT["gaussian"](), mmd_in_torch("gaussian", median), "batch")


def test_moments():
    assert_as_in_torch(DIRECT["moments"](), moments_in_torch, "batch")


def test_cosine_over_the_rows_that_both_tasks_have():
    assert_as_in_torch(DIRECT["cosine"](), cosine_in_torch, "l2")


def test_cosine_without_a_common_row_is_zero():
    grads = {task: tf.ones([2, 3]) for task in ("a", "b")}
    found = value_and_gradients(DIRECT["cosine"](), grads, {"a": [True, False], "b": [False, True]})
    assert float(found[0]) == 0.0 and not any(g.numpy().any() for g in found[1].values())


# --- the gradient penalty ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [None, {"c": [False] * 6}], ids=["three tasks", "two with rows"])
def test_the_penalty_of_linear_critics(masks):
    """Their slopes are the columns of the kernel, wherever the rows between are."""
    layer = keras.layers.Dense(3, dtype="float64", use_bias=False)
    make = adversary(Wasserstein(gradient_penalty=3.0))
    found = value_and_gradients(make(discriminator=layer, normalize="none"), asserts.sampled(), masks)
    plain = value_and_gradients(
        adversary(Wasserstein(0.0))(discriminator=layer, normalize="none"), asserts.sampled(), masks
    )
    kernel = torch.tensor(layer.kernel.numpy(), requires_grad=True)
    present = 3 if masks is None else 2
    wanted = 3.0 * (kernel[:, :present].norm(dim=0) - 1).square().mean()
    wanted.backward()
    assert float(found[0] - plain[0]) == pytest.approx(wanted.item(), rel=1e-10)
    np.testing.assert_allclose(found[2][0] - plain[2][0], kernel.grad, rtol=1e-9, atol=1e-12)
    for task, g in plain[1].items():  # the model does not pay it
        np.testing.assert_allclose(found[1][task], g, rtol=1e-12)


def test_a_flat_critic_has_a_finite_penalty():
    layer = keras.layers.Dense(3, dtype="float64", kernel_initializer="zeros")
    value, _, at_weights = value_and_gradients(adversary("wasserstein")(discriminator=layer), asserts.sampled())
    assert float(value) == pytest.approx(10.0) and all(np.isfinite(g).all() for g in at_weights)


def test_rows_between_are_those_of_two_tasks():
    """Tasks on axes of their own, so a row tells whose it is, and how far it lies between the two."""
    random = np.random.default_rng(0)
    lengths = random.uniform(1.0, 2.0, size=(3, 50))
    kept = random.random((3, 50)) < 0.6
    gradients = np.where(kept, lengths, 0.0)[..., None] * np.eye(3)[:, None]
    rows = TaskRows(tf.constant(gradients), tf.constant(kept))
    between, is_pair = (part.numpy() for part in _between_tasks(rows, 7))
    np.testing.assert_array_equal(is_pair, kept)
    partners = set()
    for t, i in np.argwhere(kept):
        share = between[t, i, t] / lengths[t, i]
        assert 0 <= share <= 1 and np.count_nonzero(between[t, i]) == 2
        [u] = [u for u in range(3) if u != t and between[t, i, u]]
        of_partner = between[t, i, u] / (1 - share)
        [j] = np.flatnonzero(np.isclose(lengths[u], of_partner, rtol=1e-6) & kept[u])
        partners.add((u, j))
    # As many draws as there are kept rows; with chance alone two thirds of them are met.
    assert len(partners) > 0.5 * kept.sum()
    assert not np.array_equal(between, _between_tasks(rows, 8)[0])
    lonely = TaskRows(tf.constant(gradients), tf.constant(kept & (np.arange(3) == 1)[:, None]))
    assert not _between_tasks(lonely, 7)[1].numpy().any()


# --- what all share ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=VARIANTS)
def make(request):
    return VARIANTS[request.param]


@pytest.mark.parametrize("how", ["zero", "masked NaN"])
def test_left_out_rows_do_not_matter(make, how):
    asserts.assert_left_out_rows_do_not_matter(make, how)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "cosine"])  # it compares rows, not tasks
def test_every_task_weighs_the_same(name):
    asserts.assert_every_task_weighs_the_same(VARIANTS[name])


def test_a_task_without_rows_does_not_count(make):
    asserts.assert_a_task_without_rows_does_not_count(make)


def test_order_of_tasks_does_not_matter(make):
    def permute(alignment, order):
        if alignment.has_weights and make is not great:  # which has its weights by now, in the order of TASKS
            kernel, bias = alignment.discriminator.logits.get_weights()
            alignment.discriminator.logits.set_weights([kernel[:, order], bias[order]])

    asserts.assert_order_of_tasks_does_not_matter(make, permute)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "laplacian"])  # but for its kernel "gaussian"
def test_same_in_every_mode(name):
    """With the penalty, whose rows are the same in every mode; the others are in a graph on two replicas, below."""
    if name == "wasserstein":
        asserts.assert_same_in_every_mode(adversary(name))
    else:
        asserts.assert_same_in_every_mode(VARIANTS[name], ("eager", "jit"))


@pytest.mark.parametrize("name", ["confusion", "wasserstein", "great", *DIRECT])
def test_float16_gradients_are_computed_in_float32(name):
    asserts.assert_float16_gradients_are_computed_in_float32(lambda: VARIANTS[name](dtype="float32"))


ARGUMENTS = {
    "wasserstein": {"weight": 0.25, "sign_free": False, "discriminator_steps": 3, "balance_labels": False},
    "least_squares": {"objective": "least_squares", "label_smoothing": 0.1},
    "great": {"anchor": 0.5, "sign_free": False, "normalize": "l2", "fraction": 1.0},
    "cosine": {"sign_free": False, "tasks": ["a", "c"], "every": 2},
    "laplacian": {"kernel": "laplacian", "bandwidth": 0.5, "scales": [1.0, 2.0], "normalize": "l2"},
    "moments": {"mean": 0.0, "covariance": 2.0, "fraction": 1.0},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_round_trip(name):
    asserts.assert_round_trip(VARIANTS[name], **ARGUMENTS[name])


BAD = [
    ("objective", "wasserstien"),
    ("objective", None),
    ("label_smoothing", 1.0),
    ("spectral_norm", 1),
    ("discriminator_steps", 0),
    ("sign_free", "yes"),
    ("balance_labels", None),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_bad_arguments_of_an_adversary(name, value):
    asserts.assert_bad_arguments_are_quoted(AdversarialAlignment, name, value)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (CosineAlignment, "weight", -1.0),
        (MMDAlignment, "kernel", "gausian"),
        (MMDAlignment, "bandwidth", 0.0),
        (MMDAlignment, "scales", (1.0, -1.0)),
        (MomentAlignment, "covariance", float("nan")),
        (Wasserstein, "gradient_penalty", -1.0),
    ],
    ids=str,
)
def test_bad_arguments(kind, name, value):
    asserts.assert_bad_arguments_are_quoted(kind, name, value)


def test_moments_of_nothing():
    with pytest.raises(UserError, match="not both 0"):
        MomentAlignment(mean=0.0, covariance=0.0)


def test_on_two_replicas(mirrored_strategy):
    """Replicas with four and two rows: their parts of value and weight gradients add up to one device's."""
    grads, names = asserts.sampled(), ["wasserstein", "cosine", "gaussian", "moments"]
    wanted = {name: value_and_gradients(VARIANTS[name](), grads, MASKS) for name in names}
    with mirrored_strategy.scope():
        alignments = {name: VARIANTS[name]() for name in names}
        for alignment in alignments.values():
            alignment.build_for(list(TASKS), [[None, WIDTH]], "float64")
    places = [slice(0, 4), slice(4, 6)]

    def part(of):
        return mirrored_strategy.experimental_distribute_values_from_function(
            lambda context: {task: tf.constant(of[task][places[context.replica_id_in_sync_group]]) for task in of}
        )

    def step(g, masks):
        return {name: value_and_gradients(alignments[name], g, masks) for name in names}

    masks = part({task: np.array(MASKS.get(task, [True] * 6)) for task in TASKS})
    found = mirrored_strategy.run(step, args=(part(grads), masks))
    for name in names:
        value, at_grads, at_weights = found[name]
        values, weights = mirrored_strategy.experimental_local_results((value, at_weights)), wanted[name][2]
        parts = [mirrored_strategy.experimental_local_results(v) for v in [value, *at_weights]]
        for got, one_device in zip(parts, [wanted[name][0], *weights], strict=True):
            np.testing.assert_allclose(sum(got), one_device, rtol=1e-9, atol=1e-13, err_msg=name)
        for task in TASKS:
            got = np.concatenate(mirrored_strategy.experimental_local_results(at_grads[task]))
            np.testing.assert_allclose(got, wanted[name][1][task], rtol=1e-8, atol=1e-13, err_msg=name)
        assert len(values) == 2
