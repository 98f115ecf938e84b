"""The keys of `data.synthetic`: the arguments of `gradalign.datasets.synthetic`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class SyntheticConfig(BaseModel):
    """What a synthetic data set is like. How the values go together is checked where it is drawn."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    rows: int = Field(200_000, ge=1, description="a whole number, 1 or more")
    validation_rows: int = Field(25_000, ge=1, description="a whole number, 1 or more")
    test_rows: int = Field(50_000, ge=1, description="a whole number, 1 or more")
    correlation: float = Field(0.8, ge=-1, le=1, description="a number from -1 to 1")
    labelled_share: dict[str, Share] = Field(
        {"sparse": 0.025, "dense": 1.0}, min_length=1, description="a mapping from task to a share above 0, up to 1"
    )
    base_rates: Rate | dict[str, Rate] = Field(
        0.2, description="a share between 0 and 1, or a mapping from task to such shares"
    )
    noise: float = Field(0.7, gt=0, description="a number above 0")
    interaction: float = Field(0.1, ge=0, lt=1, description="a share from 0 up to, but without, 1")
    fields: int = Field(10, ge=1, description="a whole number, 1 or more")
    categories: int = Field(50, ge=2, description="a whole number, 2 or more")
    skew: float = Field(0.5, ge=0, description="a number, 0 or more")
    users: int | None = Field(None, ge=2, description="a whole number, 2 or more, or null")
    seed: int = Field(0, ge=0, description="a whole number, 0 or more")
