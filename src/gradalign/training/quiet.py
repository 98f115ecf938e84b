"""Keeps TensorFlow's start-up chatter off the terminal without hiding errors.

TensorFlow's C++ code writes to file descriptor 2 whatever the log level, before its logging is set up. A small child
process reads that descriptor and passes on all but informational lines and warnings. A child, not a thread: what a
crashing process says last still gets through. Python's own `sys.stderr` bypasses it.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
from pathlib import Path

_CHATTER = re.compile(
    rb"[IW]\d{4} \d\d:\d\d:\d+\.\d+ "  # absl: informational and warning lines
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "  # the older format of the same
    rb"|WARNING: All log messages before absl::InitializeLog\(\)"
    rb"|To enable the following instructions: "
    # On some processors oneDNN leaves whole numbers to TensorFlow's own kernels, and says so as an error.
    rb"|(E\d{4}|\d{4}-\d\d-\d\d \S+ E) .*oneDNN supports DT_INT\d+ only on platforms with AVX-512"
    # TensorFlow 2.18 registers these twice in every process, and says so as an error.
    rb"|(E\d{4}|\d{4}-\d\d-\d\d \S+ E) .* Unable to register cu(FFT|DNN|BLAS) factory: .* already been registered"
)
# Said on every machine that has no GPU at all, in either format.
_NO_GPU = re.compile(rb"(E\d{4}|\d{4}-\d\d-\d\d \S+ E) .*failed call to cuInit")


def is_chatter(line: bytes, has_gpu: bool) -> bool:
    """Whether a line of TensorFlow's log can be left out.

    >>> is_chatter(b"I0000 00:00:1.2  1 cpu_feature_guard.cc:227] This TensorFlow binary ...", has_gpu=False)
    True
    >>> is_chatter(b"E0000 00:00:1.2  1 gpu.cc:52] out of memory", has_gpu=False)
    False
    """
    return _CHATTER.match(line) is not None or (not has_gpu and _NO_GPU.match(line) is not None)


def quiet_tensorflow() -> None:
    """Start filtering file descriptor 2; call it before TensorFlow is imported.

    A value of TF_CPP_MIN_LOG_LEVEL in the environment switches the filter off: who sets it wants to see the log.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ or "tensorflow" in sys.modules or not hasattr(os, "fork"):
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    sys.stderr.flush()
    terminal = os.dup(2)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for unused in (0, 1, writing):
            os.close(unused)
        _filter(reading, terminal)
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(terminal, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    atexit.register(_drain, child)


def _filter(reading: int, terminal: int) -> None:
    """The child: pass lines on until the last writer closes the pipe. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent still has words to say
    has_gpu = Path("/dev/nvidiactl").exists()
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if not is_chatter(line, has_gpu):
                os.write(terminal, line)
    os._exit(0)


def _drain(child: int) -> None:
    """Close the pipe and wait until the child has passed on what it holds."""
    sys.stderr.flush()
    os.dup2(sys.stderr.fileno(), 2)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:  # somebody has waited for it already
        return
