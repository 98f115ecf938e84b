"""What the command line does before it does anything: help, version, and no TensorFlow for either."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

import gradalign
from gradalign.cli import main

LOADED = """
import sys
from gradalign.cli import main
try:
    main({arguments})
except SystemExit as ended:
    code = ended.code
heavy = [name for name in ("tensorflow", "keras", "pyarrow", "sklearn") if name in sys.modules]
sys.exit(f"loaded {{heavy}}" if heavy or code != {code} else 0)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["--version"], 0),
        (["train", "nope.yaml"], 2),
        (["train", "census-income", "--set", "training.epoch=1"], 2),
        (["evaluate", "nowhere"], 2),
        (["bench", "--cases", "rankin"], 2),
        (["compare", "synthetic", "--methods", "single,adversarail"], 2),
    ],
)
def test_it_loads_no_tensorflow(arguments, code):
    command = [sys.executable, "-c", LOADED.format(arguments=arguments, code=code)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version():
    assert CliRunner().invoke(main, ["--version"]).output.strip() == f"gradalign, version {gradalign.__version__}"


def test_every_command_is_listed_and_explained():
    listed = CliRunner().invoke(main, ["--help"]).output
    for command in ("train", "evaluate", "predict", "export", "check", "compare", "bench"):
        assert command in listed
        assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0
