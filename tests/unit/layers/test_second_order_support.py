"""Every layer of the table, in every mode, against central differences; and against PyTorch where it has the layer.

The same table and the same measurement write `docs/second-order-support.md`; a page that says something else is stale.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gradalign.diagnostics.layer_measure import MODES, Probe, float64, measure
from gradalign.diagnostics.layer_table import CASES, NEVER_REFUSED
from gradalign.diagnostics.second_order_support import RIGHT, chunks, page, verdicts
from gradalign.layers.recurrent import admits_cudnn

PAGE = Path(__file__).parents[3] / "docs" / "second-order-support.md"
COMMAND = "python -m gradalign.diagnostics.second_order_support docs/second-order-support.md"
CHUNKS = chunks(CASES)
BY_NAME = {case.name: case for case in CASES}
_measured: dict = {}
TOGETHER = True  # on one worker, so that each layer is measured once


def measured(name):
    """What was measured of a case, with its chunk, once in this process."""
    if name not in _measured:
        [chunk] = [chunk for chunk in CHUNKS if any(case.name == name for case in chunk)]
        _measured.update(measure(chunk))
    return _measured[name]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: chunk[0].name if len(chunk) == 1 else chunk[0].group)
def test_second_order_against_central_differences(chunk):
    for case in chunk:
        of_case = measured(case.name)
        assert set(of_case) == {(mode, training) for mode in MODES for training in (True, False)}
        refused = {key: verdict for key, verdict in verdicts(case, of_case).items() if verdict != RIGHT}
        if any(word in case.group or word in case.name for word in NEVER_REFUSED):
            assert not refused, f"{case.name}: {refused}"
        if case.group == "Normalisation: Keras" and "Batch" in case.name:
            assert {training for _, training in refused} == {True}


@pytest.mark.slow
def test_the_page_is_what_is_measured():
    found = {case.name: verdicts(case, measured(case.name)) for chunk in CHUNKS for case in chunk}
    assert PAGE.read_text(encoding="utf-8") == page(found), f"docs/second-order-support.md is stale; run {COMMAND}"


def test_cudnn_is_judged_by_the_configuration():
    for case in [case for case in CASES if case.group == "Recurrent"]:
        with float64():
            layers = Probe(case, False).model.layers
        assert any(map(admits_cudnn, layers)) == case.cudnn, case.name


# --- PyTorch --------------------------------------------------------------------------------------------------------


def channels_first(x):
    return x.movedim(-1, 1)


def channels_last(x):
    return x.movedim(1, -1)


def conv1d(x, w, b):
    return channels_last(F.conv1d(channels_first(x), w.permute(2, 1, 0), b))


def conv2d(x, w, b):
    return channels_last(F.conv2d(channels_first(x), w.permute(3, 2, 0, 1), b))


def depthwise(x, w, b):
    return channels_last(F.conv2d(channels_first(x), w.permute(2, 3, 0, 1), b, groups=w.shape[2]))


def recurrent(kind, x, kernel, recurrent_kernel, bias_in, bias_out):
    module = getattr(torch.nn, kind)(x.shape[-1], recurrent_kernel.shape[0], batch_first=True).double()
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    values = (kernel.T, recurrent_kernel.T, bias_in, bias_out)
    return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))[0][:, -1]


def gru(x, kernel, recurrent_kernel, bias):
    def reordered(w):  # Keras: update, reset, new. PyTorch: reset, update, new.
        update, reset, new = w.chunk(3, -1)
        return torch.cat([reset, update, new], -1)

    return recurrent("GRU", x, reordered(kernel), reordered(recurrent_kernel), *reordered(bias))


def attention(x, wq, bq, wk, bk, wv, bv, wo, bo):
    q, k, v = (torch.einsum("btc,chd->bhtd", x, w) + b[:, None] for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
    return torch.einsum("bhtd,hdc->btc", scores @ v, wo) + bo


def batch_norm(x, gamma, beta):
    return channels_last(F.batch_norm(channels_first(x), None, None, gamma, beta, True, 0.0, 1e-3))


TORCH = {
    "Dense": lambda x, w, b: torch.tanh(x @ w + b),
    "Embedding": F.embedding,
    "Conv1D": lambda x, w, b: torch.tanh(conv1d(x, w, b)),
    "Conv2D": lambda x, w, b: torch.tanh(conv2d(x, w, b)),
    "DepthwiseConv2D": depthwise,
    "MultiHeadAttention": attention,
    "gradalign.layers.LayerNormalization": lambda x, g, b: F.layer_norm(x, x.shape[1:], g, b, 1e-3),
    "gradalign.layers.GroupNormalization": lambda x, g, b: F.group_norm(x, 2, g, b, 1e-3),
    "gradalign.layers.BatchNormalization": batch_norm,
    "gradalign.layers.BatchNormalization, rank 4": batch_norm,
    "RMSNormalization": lambda x, g: F.rms_norm(x, x.shape[1:], g, 1e-6),
    "SimpleRNN": lambda x, k, r, b: recurrent("RNN", x, k, r, b, torch.zeros_like(b)),
    "LSTM(use_cudnn=False)": lambda x, k, r, b: recurrent("LSTM", x, k, r, b, torch.zeros_like(b)),
    "GRU(use_cudnn=False)": gru,
    "MaxPooling2D": lambda x: channels_last(F.max_pool2d(channels_first(x), 2)),
    "AveragePooling2D": lambda x: channels_last(F.avg_pool2d(channels_first(x), 2)),
    '"celu"': F.celu,
    '"elu"': F.elu,
    '"gelu"': F.gelu,
    '"glu"': F.glu,
    '"hard_shrink"': F.hardshrink,
    '"hard_sigmoid"': lambda x: F.relu6(x + 3) / 6,  # PyTorch's own has no second derivative.
    '"hard_silu"': F.hardswish,
    '"hard_tanh"': F.hardtanh,
    '"leaky_relu"': lambda x: F.leaky_relu(x, 0.2),
    '"log_sigmoid"': F.logsigmoid,
    '"log_softmax"': lambda x: F.log_softmax(x, -1),
    '"mish"': F.mish,
    '"relu"': F.relu,
    '"relu6"': F.relu6,
    '"selu"': F.selu,
    '"sigmoid"': torch.sigmoid,
    '"silu"': F.silu,
    '"soft_shrink"': F.softshrink,
    '"softmax"': lambda x: F.softmax(x, -1),
    '"softplus"': F.softplus,
    '"tanh"': torch.tanh,
    '"tanh_shrink"': F.tanhshrink,
}


def pattern(shape, offset):
    return torch.sin(offset + 1.3 * torch.arange(int(np.prod(shape)), dtype=torch.float64)).reshape(shape)


@pytest.mark.parametrize("name", TORCH)
def test_second_order_against_pytorch(name):
    """One eager call: the other modes are held against it, or against differences, above."""
    case = BY_NAME[name]
    if name == "MultiHeadAttention":  # Keras 3.10 rounds 1 / sqrt(keys) to float32, which does nothing to 1 / 2.
        case = replace(case, build=lambda x: keras.layers.MultiHeadAttention(2, 4)(x, x))
    with float64():
        probe = Probe(case, True)
        found = [np.asarray(value) for value in probe(*probe.point)]
    point = [torch.tensor(p, requires_grad=True) for p in probe.point]
    if probe.case.ids:
        s = TORCH[name](torch.tensor(probe.ids).long(), *point[1:]).reshape(len(probe.ids), -1)
        z = s
    else:
        s = point[0]
        z = TORCH[name](*point)
    rows = z.reshape(len(z), -1)
    loss = F.softplus(rows @ pattern(rows.shape[1:], 1.0)).sum()
    (g,) = torch.autograd.grad(loss, s, create_graph=True)
    a = (pattern(g.shape, 2.0) * g).sum() + g.square().sum() / 2
    second = torch.autograd.grad(a, point, allow_unused=True, materialize_grads=True)
    for ours, theirs in zip(found, [loss, g, a, *second], strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-6, atol=1e-8)
