"""The `data` section of a config: where the rows come from, and how they are read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradalign.training.synthetic_config import SyntheticConfig

_FRACTION = re.compile(r"\s*(\d+|\d*\.\d+)\s+of\s+(\w+)\s*")


def is_fraction(validation: str | None) -> bool:
    """Whether `data.validation` reads like "0.5 of test" rather than like a path."""
    return _FRACTION.fullmatch(validation or "") is not None


class Section(BaseModel):
    """One mapping of the config: no unknown keys, no silent conversion. A field's description is what errors say."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataConfig(Section):
    """Where the rows come from: a bundled data set, or a training file, a test file and a validation part."""

    dataset: Literal["census-income", "synthetic"] | None = Field(
        None, description='"census-income", which is bundled, "synthetic", which is drawn, or null'
    )
    synthetic: SyntheticConfig | None = Field(None, description="a mapping with rows, correlation, labelled_share ...")
    labelled_rows: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description="a mapping from task to a whole number of rows, 1 or more"
    )
    label_seed: int = Field(0, ge=0, description="a whole number, 0 or more")
    train: str | None = Field(None, description="the path of a .parquet or .csv file")
    test: str | None = Field(None, description="the path of a .parquet or .csv file")
    validation: str | None = Field(None, description='the path of a .parquet or .csv file, or such as "0.5 of test"')
    group: str | None = Field(None, min_length=1, description="the name of a column, or null")
    limit: int | None = Field(None, ge=1, description="a whole number of rows, 1 or more, or null for all rows")
    memory_gb: float | None = Field(
        None, gt=0, description="a number of gigabytes above 0, or null for half of this machine's memory"
    )
    shuffle_buffer: int = Field(262_144, ge=1, description="a whole number of rows, 1 or more")
    cache: bool = Field(True, description="true or false")

    @model_validator(mode="before")
    @classmethod
    def _with_synthetic(cls, value: Any) -> Any:
        """A synthetic data set of which nothing is said has its defaults, which the resolved config then says."""
        drawn = isinstance(value, dict) and value.get("dataset") == "synthetic" and value.get("synthetic") is None
        return {**value, "synthetic": {}} if drawn else value

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if self.synthetic is not None and self.dataset != "synthetic":
            raise ValueError("data.synthetic says how rows are drawn; set data.dataset to synthetic, or remove it.")
        if self.labelled_rows and self.dataset != "census-income":
            mend = "set data.synthetic.labelled_share instead" if self.dataset == "synthetic" else "remove it"
            raise ValueError(f"data.labelled_rows is for the data set census-income; {mend}.")
        files = [key for key in ("train", "test", "validation") if getattr(self, key) is not None]
        if self.dataset is not None:
            if files:
                raise ValueError(
                    f'data.dataset "{self.dataset}" brings its own rows, so data.{files[0]} has no place beside it; '
                    "remove one of the two."
                )
            return self
        for key in ("train", "test"):
            if getattr(self, key) is None:
                raise ValueError(
                    f"data.{key} is missing; give the path of a .parquet or .csv file, or name a bundled data set "
                    "under data.dataset."
                )
        if is_fraction(self.validation):
            fraction = self.validation_fraction
            if fraction is None or not 0.0 < fraction[0] < 1.0:
                raise ValueError(
                    f'data.validation is "{self.validation}"; it must be a file, or a number between 0 and 1 followed '
                    'by "of test" or "of train".'
                )
        return self

    @property
    def validation_fraction(self) -> tuple[float, Literal["train", "test"]] | None:
        """(fraction, part it is taken from) where `validation` is such as "0.5 of test"; None for a path or null."""
        found = _FRACTION.fullmatch(self.validation or "")
        if found is None or found[2] not in ("train", "test"):
            return None
        return float(found[1]), found[2]  # type: ignore[return-value]
