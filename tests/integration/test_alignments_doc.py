"""docs/alignments.md: its code runs, and it names every alignment, objective and method that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from gradalign import alignment
from gradalign.alignment.objectives import OBJECTIVES
from gradalign.training.config import AlignmentConfig

TEXT = (Path(__file__).parents[2] / "docs" / "alignments.md").read_text(encoding="utf-8")


def test_the_code_runs():
    [block] = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    names = {}
    exec(block, names)
    assert float(names["loss"]) > 0


def test_every_variant_is_named():
    assert re.findall(r"^\| `([a-z_]+)` \|", TEXT, flags=re.MULTILINE) == ["objective", *OBJECTIVES]
    assert all(name in TEXT for name in dir(alignment) if name.endswith("Alignment"))
    methods = set(get_args(AlignmentConfig.model_fields["method"].annotation)) - {"none"}
    assert methods == set(re.findall(r"\| `(\w+)` \| (?:discriminator|discriminator and scales|none) \|", TEXT))
