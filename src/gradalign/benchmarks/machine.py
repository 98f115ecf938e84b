"""The machine: its cores, the versions of what runs on it, and the most that its matrix products reach."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from importlib import metadata
from typing import Any

import tensorflow as tf

from gradalign._version import __version__

__all__ = ["cores", "describe", "peak_flops_per_second", "prepare_process", "versions"]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_process() -> None:
    """Give PyTorch as many threads as TensorFlow takes by itself, one a core, and keep TensorFlow from advice.

    It takes the many models of one process for one that is traced again and again.
    """
    tf.get_logger().setLevel("ERROR")
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(cores())


def describe() -> dict[str, Any]:
    """Return what there is to compute on."""
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return {
        "cores": cores(),
        "threads": {
            "tensorflow": tf.config.threading.get_intra_op_parallelism_threads() or cores(),
            "pytorch": cores(),
        },
        # What else runs slows PyTorch more than TensorFlow: its threads wait for one another in every operation.
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
        "gpus": [str(gpu.get("device_name", "unknown")) for gpu in gpus],
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are compared, and of Python."""
    found = {"gradalign": __version__, "python": platform.python_version(), "tensorflow": tf.__version__}
    for name in ("keras", "numpy", "pyarrow", "torch"):
        if importlib.util.find_spec(name) is not None:
            found[name] = metadata.version(name)
    return found


def peak_flops_per_second(size: int, repetitions: int) -> float:
    """Return the best rate of a float32 matrix product (size, size) by (size, size), TensorFlow's or PyTorch's."""
    a = tf.random.stateless_uniform([size, size], seed=[0, 1])
    best = min(_seconds(lambda: tf.matmul(a, a)) for _ in range(repetitions))
    if importlib.util.find_spec("torch") is not None and not tf.config.list_physical_devices("GPU"):
        import torch

        b = torch.rand(size, size)
        best = min(best, *(_seconds(lambda: b @ b) for _ in range(repetitions)))
    return 2 * size**3 / best


def _seconds(product: Any) -> float:
    started = time.perf_counter()
    product()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - started
