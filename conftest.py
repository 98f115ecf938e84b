"""What the whole suite shares, the examples in docstrings too: quiet TensorFlow, PyTorch at hand, each test alone."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import importlib.util
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from xdist import is_xdist_controller
from xdist.scheduler import LoadScopeScheduling

# Before anything imports TensorFlow, and for the processes that tests start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Compilation is most of what a compiled test costs; what XLA fuses and computes is the same. A flag that a version does
# not know ends the process, so those after the first, which spare a fifth and a tenth, are for the version that they
# were tried on.
_QUICKER = " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
_IS_TRIED = importlib.metadata.version("tensorflow").startswith("2.21.")
os.environ.setdefault("XLA_FLAGS", f"--xla_backend_optimization_level=0{_QUICKER if _IS_TRIED else ''}")
# The tests' arrays are tiny and each worker has one core: threads within an operation would wait for one another.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Refuse to run without PyTorch: a suite that skipped its reference would say that gradients are right, unseen."""
    if importlib.util.find_spec("torch") is None:
        raise pytest.UsageError("The suite compares every gradient with PyTorch, which is missing: run `make install`.")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Split the CPU into two logical devices, which TensorFlow allows only before its first operation."""
    if is_xdist_controller(session):
        return  # It runs no test, so it loads no TensorFlow.
    with _quiet_stderr():
        import keras  # noqa: F401 - the tests' first import of either would print, and pytest would show it at the end
        import tensorflow as tf

    # Tracing makes objects by the million; those of the imports need no look at each collection.
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    # Grappler rewrites each graph before its first run, without changing what it computes, and most graphs here run a
    # few steps. The fixture `grappler` switches it on again; the command line and processes of their own have it too.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


class _Scheduling(LoadScopeScheduling):
    """Hands out one test after another to the worker that is free, but a file that shares something costly as a whole.

    Whole files would leave one worker alone with the last long one.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith("tests/integration/test_cli"):
            return "command line"  # they look at one trained run
        return file if _stays_together(file) else nodeid


@functools.cache
def _stays_together(file: str) -> bool:
    """Whether a file has a fixture for all its tests, or says so itself."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    return 'scope="module"' in text or "\nTOGETHER = True" in text


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Take our scheduling where no other `--dist` is asked for."""
    return _Scheduling(config, log) if config.getoption("dist") == "load" else None


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what native code writes to the error stream: TensorFlow logs its start before it reads its log level."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep encoded rows where no other run finds them, for the processes that tests start too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADALIGN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def fresh_keras() -> Iterator[None]:
    """Start each test from one seed, counted layer names and default settings, and undo the settings that it made."""
    import keras
    import tensorflow as tf

    # Names such as "dense_1" count up over a process, and a random layer made before would share its seed generator.
    # Clearing would also drop TensorFlow's kernels (eagerly only, hence the patch), and so would its seed: each
    # kernel costs a millisecond to make, and most tests use hundreds. So the seed is set where a test has changed it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "executing_eagerly", lambda: False)
        keras.utils.clear_session(free_memory=False)
    if tf.compat.v1.get_seed(0)[0] != 0:
        tf.random.set_seed(0)
    random.seed(0)
    yield
    tf.config.run_functions_eagerly(False)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
