"""What `--methods` names: what each method changes of the config, and the configs of its runs."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradalign.conditions import Condition
from gradalign.errors import UserError, nearest
from gradalign.training.config import AlignmentConfig, Config, alignment_has, validate
from gradalign.training.config_file import read_mapping

__all__ = ["BASELINE", "SINGLE", "WEIGHTS", "Method", "methods_named", "names"]

BASELINE, SINGLE, WEIGHTS = "none", "single", "weights"
_OF_TASK = ("label", "positive", "where")  # what a method may not change of a task: it would be measured on others


@dataclasses.dataclass(frozen=True)
class Method:
    """One way of training.

    Args:
        name: what it is called, in tables and in the names of folders.
        overrides: what it changes of the config, as a config says it.
    """

    name: str
    overrides: Mapping[str, Any]

    def config(self, config: Config, settings: Mapping[str, Any] | None = None) -> Config:
        """Return a config with what the method changes.

        Args:
            config: what is compared.
            settings: {dotted key: value}, set on top: what tuning found.

        Raises:
            UserError: it does not fit the schema.
        """
        raw = _merged(config.model_dump(), self.overrides)
        for key, value in (settings or {}).items():
            *path, last = key.split(".")
            inner = raw
            for name in path:
                inner = inner[name]
            inner[last] = value
        return validate(raw, f"the config with method {self.name}")

    def runs(self, config: Config) -> dict[str, Config]:
        """Return the configs of one seed's runs: {"": config}, or {task: config} where each task has its own model."""
        return {task: _single(config, task) for task in config.tasks} if self.name == SINGLE else {"": config}


def names() -> list[str]:
    """Return the names that `--methods` knows: the schema's alignments and objectives among them.

    >>> names()[:4], "mmd" in names(), "non_saturating" in names()
    (['none', 'single', 'weights', 'adversarial'], True, True)
    """
    return list(dict.fromkeys([BASELINE, SINGLE, WEIGHTS, *_choices("method"), *_choices("objective")]))


def methods_named(text: str, config: Config) -> list[Method]:
    """Return the methods that `--methods` lists, the plain sum first, which every difference is to.

    Args:
        text: names and paths of YAML files with commas between.
        config: what is compared.

    Raises:
        UserError: an unknown name, one that stands twice, or a method that cannot be compared with this config.

    Example:
        >>> from gradalign.training.config_file import load_config
        >>> [(m.name, dict(m.overrides)) for m in methods_named("cosine", load_config("synthetic"))]
        [('none', {'alignment': {'method': 'none'}}), ('cosine', {'alignment': {'method': 'cosine'}})]
    """
    given = [name.strip() for name in text.split(",") if name.strip()]
    methods = [_method(name, config) for name in dict.fromkeys([BASELINE, *given])]
    found = [method.name for method in methods]
    for name in found:
        if found.count(name) > 1 or given.count(name) > 1:
            raise UserError(f'--methods has "{name}" twice; keep one of them, or give a file another name.')
    if len(methods) == 1:
        raise UserError("--methods names none but the plain sum; name another to compare it with, such as adversarial.")
    for method in methods:
        _check(method, config)
    return methods


def _method(name: str, config: Config) -> Method:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return _from_file(Path(name).expanduser(), config)
    if name in (BASELINE, SINGLE, WEIGHTS):
        return Method(name, {"alignment": {"method": "none"}})
    if name in _choices("method"):
        return Method(name, {"alignment": _alignment(config, name, None)})
    if name in _choices("objective"):
        return Method(name, {"alignment": _alignment(config, "adversarial", name)})
    raise UserError(
        f'--methods has "{name}", which is no method; there are {", ".join(names())}, or give the path of a YAML file '
        f"whose keys override the config.{nearest(name, names())}"
    )


def _choices(key: str) -> list[str]:
    """The values that the schema admits for a key of `alignment`."""
    return list(typing.get_args(AlignmentConfig.model_fields[key].annotation))


def _alignment(config: Config, method: str, objective: str | None) -> dict[str, Any]:
    """What to change of `alignment` for a method: its name, and options of the config's own method that it lacks."""
    changed: dict[str, Any] = {"method": method}
    if objective is not None:
        changed["objective"] = objective
    for key, field in AlignmentConfig.model_fields.items():
        if key == "method" or getattr(config.alignment, key) == field.default:
            continue
        has = alignment_has(method, key)
        if key in ("gradient_penalty", "label_smoothing"):  # Wasserstein's alone, and all others'
            is_wasserstein = (objective or config.alignment.objective) == "wasserstein"
            has = has and is_wasserstein == (key == "gradient_penalty")
        if not has:
            changed[key] = field.default
    return changed


def _from_file(path: Path, config: Config) -> Method:
    name = path.stem
    if not re.fullmatch(r"\w[\w.\-]*", name) or name in names():
        why = "is the name of a method already" if name in names() else "cannot be the name of a folder"
        raise UserError(f'--methods has the file "{path}", and "{name}" {why}; give the file another name.')
    overrides = read_mapping(path)
    of_alignment = overrides.get("alignment")
    method = of_alignment.get("method") if isinstance(of_alignment, dict) else None
    if isinstance(of_alignment, dict) and method in _choices("method") and method != BASELINE:
        # As for a method that is named: options that it lacks do not come from the config.
        overrides = {
            **overrides,
            "alignment": {**_alignment(config, method, of_alignment.get("objective")), **of_alignment},
        }
    found = Method(name, overrides)
    raw = _merged(config.model_dump(), overrides)
    changed = validate(raw, str(path))
    for key in ("name", "data"):
        if getattr(changed, key) != getattr(config, key):
            raise UserError(f"{path} changes {key}, which all methods share; take it out, or compare another config.")
    if changed.training.seed != config.training.seed:
        raise UserError(f"{path} changes training.seed, which --seeds sets; take it out.")
    if list(changed.tasks) != list(config.tasks) or any(
        getattr(changed.tasks[task], key) != getattr(spec, key)
        for task, spec in config.tasks.items()
        for key in _OF_TASK
    ):
        raise UserError(
            f"{path} changes the tasks or their labels, which all methods are measured on; it may change their "
            "loss_weight, loss and chain."
        )
    return found


def _check(method: Method, config: Config) -> None:
    changed = method.config(config)
    if len(config.tasks) < 2 and (method.name in (SINGLE, WEIGHTS) or changed.alignment.method != "none"):
        raise UserError(f"Method {method.name} is for two tasks or more, and {config.name} has one.")
    if method.name == WEIGHTS and not has_validation(config):
        raise UserError(
            "Method weights chooses by the validation part, and the config has none; set data.validation to a file, or "
            "to such as 0.1 of train."
        )


def has_validation(config: Config) -> bool:
    """Whether a config's data has a validation part."""
    return config.data.dataset is not None or config.data.validation is not None


def _single(config: Config, task: str) -> Config:
    """One task's own model: from the weights that it has beside the others, whose labels are no features of it."""
    outcomes = []
    for other, spec in config.tasks.items():
        if other != task:
            outcomes += [spec.label] + ([Condition.parse(spec.where).column] if spec.where is not None else [])
    spec = config.tasks[task]
    own = {spec.label, *([Condition.parse(spec.where).column] if spec.where is not None else [])}
    drop = list(dict.fromkeys([*config.features.drop, *(column for column in outcomes if column not in own)]))
    raw = config.model_dump()
    raw["tasks"] = {task: {**raw["tasks"][task], "chain": None, "loss_weight": 1.0}}
    raw["features"]["drop"] = drop
    raw["alignment"] = {"method": "none"}
    raw["model"]["initial_tasks"] = config.model.initial_tasks or list(config.tasks)
    return validate(raw, f"the config of {task} alone")


def _merged(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with another on top; mappings inside are merged, all else is replaced.

    >>> _merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"c": 3}, "d": [2]})
    {'a': {'b': 1, 'c': 3}, 'd': [2]}
    """
    merged = dict(raw)
    for key, value in overrides.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged
