"""What must stand around GradAlign before TensorFlow and Keras are loaded, checked without loading either.

Keras settles its backend once, when it is first imported; what is wrong there shows up much later and elsewhere. So
`import gradalign` looks first, and ends in one sentence where it cannot work.
"""

# ruff: noqa: PTH111, PTH118
from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path

# The oldest releases that work, as (major, minor): the same bounds as in pyproject.toml, which gives the reasons.
FLOORS = {"tensorflow": (2, 18), "keras": (3, 10)}

# TensorFlow's module comes from distributions of several names.
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly"),
    "keras": ("keras", "keras-nightly"),
}
_TITLES = {"tensorflow": "TensorFlow", "keras": "Keras"}


def check_environment() -> None:
    """Check the releases of TensorFlow and Keras, Keras' backend, and that TensorFlow does not route to Keras 2.

    Raises:
        ImportError: With one sentence that names what is wrong and how to mend it.

    >>> check_environment()
    """
    problem = _release_problem("tensorflow") or _release_problem("keras") or _legacy_problem() or _backend_problem()
    if problem:
        raise ImportError(problem)


def _release_problem(module: str) -> str | None:
    """Say what is wrong with the installed release of `module`, None where nothing is."""
    title = _TITLES[module]
    wanted = ".".join(map(str, FLOORS[module]))
    mend = f'install it with: pip install "{module}>={wanted}"'
    version = _installed_version(module)
    if version is None:
        # A build without package metadata cannot be judged by its version; a missing module can.
        missing = module not in sys.modules and importlib.util.find_spec(module) is None
        return f"GradAlign needs {title} {wanted} or newer, and it is not installed; {mend}" if missing else None
    release = re.match(r"(\d+)\.(\d+)", version)
    if release is not None and (int(release[1]), int(release[2])) < FLOORS[module]:
        return f"GradAlign needs {title} {wanted} or newer, and {version} is installed; {mend}"
    return None


def _installed_version(module: str) -> str | None:
    """Return the version of the distribution that holds `module`, None where none is found."""
    for distribution in _DISTRIBUTIONS[module]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _legacy_problem() -> str | None:
    """Say so where TensorFlow sends `tf.keras` to Keras 2; the values are the ones that TensorFlow itself takes."""
    value = os.environ.get("TF_USE_LEGACY_KERAS")
    if value not in ("1", "true", "True"):
        return None
    return (
        f"GradAlign needs Keras 3, and TF_USE_LEGACY_KERAS={value} sends tf.keras to Keras 2; "
        "unset TF_USE_LEGACY_KERAS before Python starts."
    )


def _backend_problem() -> str | None:
    """Name the backend that Keras has, or will have, where it is not TensorFlow, and what sets it."""
    needs = "GradAlign needs Keras on its TensorFlow backend"
    config = getattr(sys.modules.get("keras"), "config", None)
    if config is not None:  # Keras is loaded: its backend is settled, whatever the environment says now.
        backend = config.backend()
        mend = "start Python again with KERAS_BACKEND=tensorflow."
        return None if backend == "tensorflow" else f'{needs}, and Keras is already loaded on "{backend}"; {mend}'

    backend = os.environ.get("KERAS_BACKEND")
    if backend:  # Set but empty counts as unset, for Keras too.
        mend = "unset it or set KERAS_BACKEND=tensorflow before Python starts."
        return None if backend == "tensorflow" else f"{needs}, and KERAS_BACKEND is {backend}; {mend}"

    path = _keras_json()
    backend = _backend_in(path)
    mend = 'change it to "tensorflow" there, or set KERAS_BACKEND=tensorflow before Python starts.'
    return None if backend == "tensorflow" else f'{needs}, and {path} says "backend": "{backend}"; {mend}'


def _keras_json() -> Path:
    """Return where Keras keeps its settings: KERAS_HOME, else ~/.keras, else (no home to write to) /tmp/.keras.

    Composed as Keras does it: `Path.expanduser` would raise where there is no home.
    """
    folder = os.environ.get("KERAS_HOME")
    if folder is None:
        home = os.path.expanduser("~")
        folder = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    return Path(os.path.expanduser(os.path.join(folder, "keras.json")))


def _backend_in(path: Path) -> str:
    """Return the backend that a Keras settings file names; TensorFlow is Keras' default."""
    if not path.exists():
        return "tensorflow"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # Keras takes a file that is not JSON for an empty one.
        return "tensorflow"
    return str(settings.get("backend", "tensorflow")) if isinstance(settings, dict) else "tensorflow"
