"""Reading, overriding and writing configs: YAML 1.2, where 1e-3 is a number, `no` a word and a key stands once."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from gradalign.errors import UserError, nearest
from gradalign.training.config import Config, validate
from gradalign.training.config_errors import quote
from gradalign.training.data_config import is_fraction

_PATHS = ("train", "test", "validation")


def bundled_configs() -> dict[str, str]:
    """Name and text of each config that comes with the package.

    >>> list(bundled_configs())
    ['census-income', 'synthetic']
    """
    folder = resources.files("gradalign.training") / "configs"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text("utf-8") for f in files}


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config, apply overrides, check it, and make its paths absolute.

    Args:
        source: a bundled config's name or the path of a YAML file. Paths in a file are relative to that file.
        overrides: such as "training.epochs=2": a dotted key and a YAML value. What is set replaces what stands there;
            a column name with a dot in it is reached by setting the mapping around it. Paths are relative to the
            current folder.

    Raises:
        UserError: there is no such config, it is not valid YAML, or it does not fit the schema.

    >>> load_config("census-income", ["alignment.method=none"]).alignment.method
    'none'
    """
    bundled = bundled_configs()
    if str(source) in bundled:
        path, text, folder = Path(f"{source}.yaml"), bundled[str(source)], Path.cwd()
        shown = str(source)
    else:
        path = Path(source).expanduser()
        text, folder = _read(path, bundled), path.absolute().parent
        shown = str(path)
    raw = _parse(text, shown)
    if not isinstance(raw, dict):
        raise UserError(f"{shown} holds {quote(raw)}; a config is a mapping with data, tasks and so on.")
    raw.setdefault("name", re.sub(r"[^\w.\-]+", "-", path.stem).lstrip("-.") or "run")
    _make_absolute(raw, folder)
    for override in overrides:
        _apply(raw, override)
    _make_absolute(raw, Path.cwd())
    return validate(raw, f"{shown} with its --set" if overrides else shown)


def dump_config(config: Config) -> str:
    """The config as YAML with every default written out; reading it again gives an equal config from any folder.

    >>> print(dump_config(load_config("census-income")).splitlines()[0])
    name: census-income
    """
    return to_yaml(config.model_dump())


def to_yaml(content: Mapping[str, Any]) -> str:
    """Plain mappings, lists and values as YAML, in their order, one key a line.

    >>> print(to_yaml({"b": [1, 2], "a": "ü"}), end="")
    b:
    - 1
    - 2
    a: ü
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.width = 4096
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(content, text)
    return text.getvalue()


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds some of a config's keys; what they mean is not checked.

    Raises:
        UserError: it cannot be read, or holds no mapping.
    """
    raw = _parse(_read(path, {}), str(path))
    if not isinstance(raw, dict):
        raise UserError(f"{path} holds {quote(raw)}; it must be a mapping with keys of a config.")
    return raw


def _read(path: Path, bundled: dict[str, str]) -> str:
    if path.is_dir():
        inside = path / "config.yaml"
        hint = f'; give "{inside}" to train with its config' if inside.is_file() else "; give the path of a YAML file"
        raise UserError(f'"{path}" is a folder, not a config{hint}.')
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        names = f" or a bundled name ({', '.join(bundled)})" if bundled else ""
        raise UserError(
            f'There is no config "{path}"; give the path of a YAML file{names}.{nearest(str(path), bundled)}'
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f'The config "{path}" cannot be read: {reason}.') from None


def _parse(text: str, shown: str) -> Any:
    yaml = YAML(typ="safe", pure=True)
    try:
        return yaml.load(text)
    except DuplicateKeyError as error:
        key = re.search(r'duplicate key "(.*?)"', str(error.problem))
        raise UserError(
            f'{shown} has the key "{key[1] if key else "?"}" twice{_line(error)}; keep one of the two.'
        ) from None
    except YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{shown} is not valid YAML{_line(error)}: {problem}.") from None


def _line(error: YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""


def _make_absolute(raw: dict[str, Any], folder: Path) -> None:
    """Make the paths of `data` absolute in place; what is no text is left for the schema to refuse."""
    data: Any = raw.get("data")
    for key in _PATHS if isinstance(data, dict) else ():
        value = data.get(key, None)
        if isinstance(value, str) and not (key == "validation" and is_fraction(value)):
            data[key] = str((folder / Path(value).expanduser()).resolve())


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f'--set takes key=value, such as training.epochs=2, but got "{override}".')
    value = _parse(text, f"--set {key}")
    inner = raw
    for i, name in enumerate(path[:-1]):
        if inner.get(name) is None:
            inner[name] = {}
        inner = inner[name]
        if not isinstance(inner, dict):
            where = ".".join(path[: i + 1])
            raise UserError(f"--set {key} finds {quote(inner)} at {where}, not a mapping; set {where} as a whole.")
    inner[path[-1]] = value
