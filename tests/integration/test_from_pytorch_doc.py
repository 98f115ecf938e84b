"""docs/from-pytorch.md, executed: every block in order, its printed text compared; and its Chinese twin."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import keras
import pytest

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def blocks(name: str) -> list[tuple[str, str]]:
    return FENCE.findall((DOCS / name).read_text(encoding="utf-8"))


@pytest.fixture
def floatx_restored():
    before = keras.config.floatx()
    yield
    keras.config.set_floatx(before)


def test_every_block_prints_what_stands_below_it(floatx_restored):
    found = blocks("from-pytorch.md")
    namespace: dict[str, object] = {}
    printed_blocks = 0
    for number, (language, code) in enumerate(found):
        if language == "text":
            continue
        following = found[number + 1] if number + 1 < len(found) else ("", "")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"from-pytorch.md, block {number}", "exec"), namespace)
        assert printed.getvalue() == (following[1] if following[0] == "text" else ""), f"block {number}:\n{code}"
        printed_blocks += following[0] == "text"
    assert printed_blocks == sum(language == "text" for language, _ in found) == 12
    # The three programs really have every gradient, and the document's own comparison is not the only one.
    results = [namespace[name] for name in ("in_pytorch", "in_tensorflow", "in_gradalign")]
    for name, start in namespace["start"].items():
        shapes = {result[name].shape for result in results}
        assert shapes == {start.shape} and all(abs(result[name]).max() > 1e-4 for result in results), name


def test_the_chinese_document_has_the_same_code():
    assert blocks("from-pytorch.zh-CN.md") == blocks("from-pytorch.md")


def test_both_documents_have_the_same_parts_and_link_to_each_other():
    english = (DOCS / "from-pytorch.md").read_text(encoding="utf-8")
    chinese = (DOCS / "from-pytorch.zh-CN.md").read_text(encoding="utf-8")
    prose = [FENCE.sub("", text) for text in (english, chinese)]
    levels = [[line.split(" ")[0] for line in text.splitlines() if line.startswith("#")] for text in prose]
    assert levels[0] == levels[1]
    assert "(from-pytorch.zh-CN.md)" in english and "(from-pytorch.md)" in chinese
    assert not CHINESE.search(prose[0].replace("中文", ""))
    for line in prose[1].splitlines():
        if line.startswith("#") and "PyTorch" not in line and "GradAlign" not in line:
            assert CHINESE.search(line), line
