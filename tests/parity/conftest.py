"""One thread for PyTorch, and Keras' default float type where a test asks for another."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def floatx(request):
    """Sets `floatx` to the test's `dtype` parameter (float64 where there is none), and restores it."""
    before = keras.config.floatx()
    dtype = request.getfixturevalue("dtype") if "dtype" in request.fixturenames else "float64"
    keras.config.set_floatx(dtype)
    yield dtype
    keras.config.set_floatx(before)
