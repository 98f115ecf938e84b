"""The filter on the error stream: chatter stays away, errors come through, even those of a process that dies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradalign.training.quiet import is_chatter

CHATTER = [
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    b"I0000 00:00:1796034448.826741    4164 cudart_stub.cc:31] Could not find cuda drivers on your machine.",
    b"W0000 00:00:1796034448.826741    4164 gpu_device.cc:2341] Cannot dlopen some GPU libraries.",
    b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.",
    b"2025-01-01 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
    # TensorFlow 2.21, on a processor without VNNI:
    b"E0000 00:00:1796102073.757791    4627 util.cc:131] oneDNN supports DT_INT32 only on platforms with AVX-512. "
    b"Falling back to the default Eigen-based implementation if present.",
    # TensorFlow 2.18, in every process:
    b"2025-01-01 10:00:00.123456: E external/local_xla/xla/cuda_fft.cc:477] Unable to register cuFFT factory: "
    b"Attempting to register factory for plugin cuFFT when one has already been registered",
    b"E0000 00:00:1796061256.411674   32629 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register "
    b"factory for plugin cuDNN when one has already been registered",
]
NO_GPU = [
    b"E0000 00:00:1796034462.437224    4195 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
    b"2025-01-01 10:00:00.123456: E external/local_xla/xla/cuda_driver.cc:152] failed call to cuInit: INTERNAL",
]
ERRORS = [
    b"E0000 00:00:1796034462.437224    4195 gpu.cc:52] out of memory",
    b"F0000 00:00:1796034462.437224    4195 cpu_feature_guard.cc:1] Check failed",
    b"2025-01-01 10:00:00.123456: E tensorflow/core/framework/op.cc:1] something broke",
    b"Traceback (most recent call last):",
    b"Segmentation fault",
    b"",
]


@pytest.mark.parametrize("has_gpu", [True, False])
def test_what_is_chatter(has_gpu):
    assert all(is_chatter(line, has_gpu) for line in CHATTER)
    assert not any(is_chatter(line, has_gpu) for line in ERRORS)
    assert all(is_chatter(line, has_gpu) is not has_gpu for line in NO_GPU)


PROCESS = """
import os, sys
from gradalign.training.quiet import quiet_tensorflow
quiet_tensorflow()
os.write(2, b"I0000 00:00:1.2  1 a.cc:1] chatter\\n")
print("from Python", file=sys.stderr)
os.write(2, b"E0000 00:00:1.2  1 a.cc:1] real\\n")
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("os.write(2, b'last words\\n'); os.abort()", -6)]
)
def test_errors_come_through_however_the_process_ends(end, code):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", PROCESS.format(end=end)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == code
    assert "from Python\n" in done.stderr and "] real\n" in done.stderr and "chatter" not in done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (code == 1)
    assert ("last words" in done.stderr) == (code == -6)


def test_who_sets_the_log_level_sees_the_log():
    command = [sys.executable, "-c", PROCESS.format(end="")]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    assert "chatter" in subprocess.run(command, check=False, capture_output=True, text=True, env=environment).stderr
