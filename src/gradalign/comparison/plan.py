"""What a comparison was asked for, and the folder that holds it: comparison.yaml, and one command at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradalign.comparison.methods import Method, has_validation
from gradalign.errors import UserError
from gradalign.training.config import Config
from gradalign.training.config_file import read_mapping, to_yaml
from gradalign.training.run_folder import write_text

__all__ = ["PLAN", "TUNING_SEED", "Plan", "begin", "locked"]

PLAN = "comparison.yaml"
LOCK = ".lock"
# Of the runs that tune, which are not among those that are compared: what is chosen must not have been lucky there.
TUNING_SEED = 1_000_000
_PATIENCE = 5.0  # seconds for the processes of a comparison that was just killed to notice


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is compared.

    Args:
        config: resolved, with all defaults.
        methods: the plain sum first.
        seeds: how many; seed k has `training.seed: k` and nothing else.
        trials: of each method's tuning; 0 for none.

    Raises:
        UserError: trials without a validation part.
    """

    config: Config
    methods: tuple[Method, ...]
    seeds: int
    trials: int = 0

    def __post_init__(self) -> None:
        if self.trials and not has_validation(self.config):
            raise UserError(
                "--trials chooses by the validation part, and the config has none; set data.validation to a file, or "
                "to such as 0.1 of train."
            )

    def asked(self) -> dict[str, Any]:
        """Return what comparison.yaml holds."""
        return {
            "config": self.config.model_dump(),
            "methods": {method.name: _plain(method.overrides) for method in self.methods},
            "seeds": self.seeds,
            "trials": self.trials,
        }

    def seeded(self, config: Config, seed: int) -> Config:
        """Return a config with another `training.seed`."""
        return config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})


def begin(plan: Plan, folder: Path) -> None:
    """Make the comparison's folder, or see that the one which is there was asked for the same.

    Raises:
        UserError: it was not, it is no comparison, or it cannot be made.
    """
    path, asked = folder / PLAN, plan.asked()
    if path.is_file():
        _refuse_other(read_mapping(path), asked, folder)
        return
    write_text(path, to_yaml(asked))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int | None]:
    """Keep other commands off a comparison's folder; gives the lock's file descriptor, for child processes to hold too.

    Raises:
        UserError: another command is at work there, it is no comparison, or it cannot be made.
    """
    known = {PLAN, LOCK, f"{PLAN}.tmp"}
    if folder.exists() and (not folder.is_dir() or not (folder / PLAN).is_file()):
        foreign = not folder.is_dir() or any(path.name not in known for path in folder.iterdir())
        if foreign:
            raise UserError(f'"{folder}" exists and is no comparison, so it is left alone; choose another --out.')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as error:
        raise UserError(f'The folder "{folder}" cannot be made: {error.strerror}.') from None
    with file:
        if sys.platform == "win32":  # no such locks
            yield None
            return
        import fcntl

        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(
                        f'Another `gradalign compare` is at work in "{folder}"; wait for it, or choose another --out.'
                    ) from None
                time.sleep(0.1)
        yield file.fileno()


def _refuse_other(there: Mapping[str, Any], asked: Mapping[str, Any], folder: Path) -> None:
    before, now = _leaves(there), _leaves(json.loads(json.dumps(asked)))
    for key in [*before, *(key for key in now if key not in before)]:
        if before.get(key, _MISSING) != now.get(key, _MISSING):
            was, wanted = (_shown(leaves.get(key, _MISSING)) for leaves in (before, now))
            raise UserError(
                f'"{folder}" holds a comparison with {key} {was}, and this command has {wanted}; give the settings of '
                f"{PLAN} there, or choose another --out."
            )


_MISSING = object()


def _shown(value: object) -> str:
    return "not set" if value is _MISSING else json.dumps(value, ensure_ascii=False)


def _leaves(raw: Any, prefix: str = "") -> dict[str, Any]:
    """The values in nested mappings, by dotted key; of `methods`, names and their order are values too.

    >>> _leaves({"a": {"b": 1}, "methods": {"none": {}}})
    {'a.b': 1, 'methods': ['none']}
    """
    found: dict[str, Any] = {}
    for key, value in raw.items():
        dotted = f"{prefix}{key}"
        if dotted == "methods" and isinstance(value, Mapping):
            found[dotted] = list(value)
        if isinstance(value, Mapping):
            found.update(_leaves(value, f"{dotted}."))
        else:
            found[dotted] = value
    return found


def _plain(value: Any) -> Any:
    """The same in plain mappings and lists, as YAML and JSON write them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
