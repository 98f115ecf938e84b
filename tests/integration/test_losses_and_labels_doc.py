"""docs/losses-and-labels.md, executed: its Python in order, with what it prints, and its configs."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from ruamel.yaml import YAML

from gradalign.training.config import validate

TEXT = (Path(__file__).parents[2] / "docs" / "losses-and-labels.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_every_block():
    namespace: dict[str, object] = {}
    printed = ""
    for language, code in BLOCKS:
        if language == "python":
            assert printed == "", "what is printed stands below"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, "losses-and-labels.md", "exec"), namespace)
            printed = out.getvalue()
        elif language == "text":
            assert code == printed
            printed = ""
        else:
            raw = {"name": "shop", "data": {"train": "train.parquet", "test": "test.parquet"}}
            tasks = validate({**raw, **YAML(typ="safe", pure=True).load(code)}).tasks
            assert "click" in tasks and len(tasks) == 2
    assert [language for language, _ in BLOCKS] == [
        *("python", "python", "python", "text", "python", "text"),
        *("yaml", "python", "yaml"),
    ]
