"""The config's schema: every key, its type, its default and what it means.

A config is a YAML file (see `configs/census-income.yaml`, where comments explain each key) that
`gradalign.training.config_file` reads and turns into a `Config`. Unknown keys, wrong types and impossible values are
refused by `validate`, in one sentence that names the key, quotes the value and says what is wanted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from gradalign.conditions import Condition
from gradalign.errors import nearest
from gradalign.training.config_errors import one_sentence
from gradalign.training.data_config import DataConfig, Section

Scalar = str | bool | int | float
Activation = Literal["gelu", "silu", "swish", "softplus", "tanh", "sigmoid", "elu", "selu", "mish", "relu", "linear"]


class LossConfig(Section):
    """A task's loss. Its default is plain binary cross-entropy."""

    kind: Literal["binary_crossentropy", "focal"] = Field(
        "binary_crossentropy", description='"binary_crossentropy" or "focal"'
    )
    pos_weight: float = Field(1.0, gt=0, description="a number above 0, by which positive rows are weighted")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="a number from 0 up to, but without, 1")
    gamma: float | None = Field(None, ge=0, description="a number, 0 or more; only with kind: focal")

    @model_validator(mode="before")
    @classmethod
    def _with_gamma(cls, value: Any) -> Any:
        """Focal loss without a `gamma` takes the 2 of its paper, which the resolved config then says."""
        focal = isinstance(value, dict) and value.get("kind") == "focal" and value.get("gamma") is None
        return {**value, "gamma": 2.0} if focal else value


class TaskConfig(Section):
    """One binary task: a label column, the value or values that count as positive, and its loss.

    `where` says which rows have a label, `chain` of which other task's positives it is a part.
    """

    label: str = Field(description="the name of a column")
    positive: Annotated[list[Scalar], BeforeValidator(lambda v: v if isinstance(v, list) else [v])] = Field(
        min_length=1, description="the label's positive value, or a list of them"
    )
    loss_weight: float = Field(1.0, ge=0, description="a number, 0 or more")
    loss: LossConfig = Field(LossConfig(), description="a mapping with kind, pos_weight, label_smoothing, gamma")
    where: str | None = Field(None, description='null, or a condition such as "click == 1"')
    chain: str | None = Field(None, description="null, or the name of another task")


class NumericFeature(Section):
    """How one numeric column enters the model."""

    transform: Literal["bucket", "project"] = Field("bucket", description='"bucket" or "project"')
    buckets: int | None = Field(None, ge=2, description="a whole number, 2 or more; only with transform: bucket")

    @model_validator(mode="after")
    def _buckets_where_there_are_some(self) -> NumericFeature:
        if self.transform == "project" and self.buckets is not None:
            raise ValueError(
                f"features.numeric has a column with transform: project and buckets: {self.buckets}; "
                "remove buckets, which only transform: bucket has."
            )
        return self


class CategoricalFeature(Section):
    """Which values of a column get an embedding of their own; the others share one."""

    min_count: int = Field(2, ge=1, description="a whole number, 1 or more")
    max_size: int | None = Field(None, ge=1, description="a whole number, 1 or more, or null")


class MultiValuedFeature(CategoricalFeature):
    """The same for a column of lists, and how many values of a row are kept."""

    max_length: int = Field(50, ge=1, description="a whole number, 1 or more")


def _names_to_mapping(value: Any) -> Any:
    """`numeric: [age, year]` is short for `numeric: {age: {}, year: {}}`; `age: null` for `age: {}`."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if isinstance(value, dict):
        return {name: {} if options is None else options for name, options in value.items()}
    return value


class FeaturesConfig(Section):
    """What is said about the columns; those that no key names are inferred from the training file."""

    drop: list[str] = Field([], description="a list of column names")
    numeric: Annotated[dict[str, NumericFeature], BeforeValidator(_names_to_mapping)] = Field(
        {}, description="a list of column names, or a mapping from column name to {transform, buckets}"
    )
    categorical: Annotated[dict[str, CategoricalFeature], BeforeValidator(_names_to_mapping)] = Field(
        {}, description="a list of column names, or a mapping from column name to {min_count, max_size}"
    )
    multi_valued: Annotated[dict[str, MultiValuedFeature], BeforeValidator(_names_to_mapping)] = Field(
        {}, description="a list of column names, or a mapping from column name to {min_count, max_size, max_length}"
    )

    @model_validator(mode="after")
    def _said_once(self) -> FeaturesConfig:
        seen: dict[str, str] = {}
        for kind in ("drop", "numeric", "categorical", "multi_valued"):
            for column in getattr(self, kind):
                if column in seen:
                    raise ValueError(
                        f'column "{column}" stands under both features.{seen[column]} and features.{kind}; '
                        "keep it under one of them."
                    )
                seen[column] = kind
        return self


class ModelConfig(Section):
    """The network: shared and private embeddings, and one tower per task."""

    architecture: Literal["shared_private"] = Field("shared_private", description='"shared_private"')
    shared_dim: int = Field(8, ge=1, description="a whole number, 1 or more")
    private_dim: int = Field(4, ge=0, description="a whole number, 0 or more")
    towers: list[Annotated[int, Field(ge=1)]] = Field(
        [64, 32], min_length=1, description="a list of whole numbers, 1 or more each"
    )
    activation: Activation = Field("gelu", description="the name of a Keras activation, such as gelu or relu")
    dropout: float = Field(0.0, ge=0, lt=1, description="a number from 0 up to, but without, 1")
    initial_tasks: list[str] | None = Field(None, min_length=1, description="null, or a list of task names")


# Which methods have an option; every other key is of all.
_METHODS_WITH = {
    **dict.fromkeys(("normalize", "balance_labels"), ("adversarial", "mmd", "moments", "great")),
    **dict.fromkeys(("objective", "gradient_penalty", "label_smoothing", "spectral_norm"), ("adversarial", "great")),
    **dict.fromkeys(("discriminator_steps", "discriminator_learning_rate"), ("adversarial", "great")),
    "every": ("adversarial", "cosine", "mmd", "moments"),
    "anchor": ("great",),
    **dict.fromkeys(("kernel", "bandwidth"), ("mmd",)),
    **dict.fromkeys(("mean", "covariance"), ("moments",)),
}


def alignment_has(method: str, key: str) -> bool:
    """Whether an alignment method has an option.

    >>> alignment_has("mmd", "kernel"), alignment_has("cosine", "kernel")
    (True, False)
    """
    return method in _METHODS_WITH.get(key, (method,))


class AlignmentConfig(Section):
    """How the tasks' gradients are aligned. With `method: none` the other keys play no part."""

    method: Literal["adversarial", "cosine", "mmd", "moments", "great", "none"] = Field(
        "adversarial", description='"adversarial", "cosine", "mmd", "moments", "great" or "none"'
    )
    weight: float = Field(0.1, ge=0, description="a number, 0 or more")
    normalize: Literal["batch", "l2", "none"] = Field("batch", description='"batch", "l2" or "none"')
    schedule: Literal["ganin", "linear"] | Annotated[float, Field(ge=0)] = Field(
        "ganin", description='"ganin", "linear", or a number, 0 or more'
    )
    reach: Literal["all", "shared"] = Field("all", description='"all" or "shared"')
    fraction: float = Field(1.0, gt=0, le=1, description="a number above 0, up to 1")
    every: int = Field(1, ge=1, description="a whole number, 1 or more")
    tasks: list[str] | None = Field(None, min_length=2, description="null, or a list of two task names or more")
    sign_free: bool = Field(False, description="true or false")
    balance_labels: bool = Field(False, description="true or false")
    objective: Literal["reversal", "non_saturating", "confusion", "least_squares", "wasserstein"] = Field(
        "reversal", description='"reversal", "non_saturating", "confusion", "least_squares" or "wasserstein"'
    )
    gradient_penalty: float = Field(10.0, ge=0, description="a number, 0 or more; only with objective: wasserstein")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="a number from 0 up to, but without, 1")
    spectral_norm: bool = Field(False, description="true or false")
    discriminator_steps: int = Field(1, ge=1, description="a whole number, 1 or more")
    discriminator_learning_rate: float | None = Field(None, gt=0, description="null, or a number above 0")
    kernel: Literal["gaussian", "laplacian"] = Field("gaussian", description='"gaussian" or "laplacian"')
    bandwidth: float | None = Field(None, gt=0, description="null, or a number above 0")
    mean: float = Field(1.0, ge=0, description="a number, 0 or more")
    covariance: float = Field(1.0, ge=0, description="a number, 0 or more")
    anchor: float = Field(0.0, ge=0, description="a number, 0 or more")

    @model_validator(mode="after")
    def _options_of_the_method(self) -> AlignmentConfig:
        if self.method == "none":
            return self
        given = [key for key, field in type(self).model_fields.items() if getattr(self, key) != field.default]
        for key in given:
            if not alignment_has(self.method, key):
                methods = _METHODS_WITH[key]
                raise ValueError(
                    f"alignment.{key} is {getattr(self, key)} and alignment.method is {self.method}, which has no such "
                    f"option; remove it, or take method: {' or '.join(methods)}."
                )
        if "gradient_penalty" in given and self.objective != "wasserstein":
            raise ValueError("alignment.gradient_penalty is of objective: wasserstein alone; remove one of the two.")
        if "label_smoothing" in given and self.objective == "wasserstein":
            raise ValueError("alignment.label_smoothing has no place in objective: wasserstein; remove one of the two.")
        if self.method == "moments" and self.mean == self.covariance == 0.0:
            raise ValueError("alignment.mean and alignment.covariance are both 0; let one of them be above 0.")
        return self


class TrainingConfig(Section):
    """How long and how fast to train."""

    batch_size: int = Field(1024, ge=1, description="a whole number, 1 or more")
    epochs: int = Field(5, ge=1, description="a whole number, 1 or more")
    learning_rate: float = Field(0.001, gt=0, description="a number above 0")
    table_optimizer: Literal["lazy_adam", "lazy_adagrad", "row_wise_adagrad", "adam"] = Field(
        "lazy_adam", description='"lazy_adam", "lazy_adagrad", "row_wise_adagrad" or "adam"'
    )
    seed: int = Field(0, ge=0, lt=2**31, description="a whole number, 0 or more")
    monitor_every: int = Field(0, ge=0, description="a whole number of steps, or 0 for never")
    jit_compile: bool | Literal["auto", "dense"] = Field("auto", description='true, false, "auto" or "dense"')


class Config(Section):
    """A whole config: what `gradalign train` needs to know, checked; `name` is the run folder's default name.

    >>> config = validate({
    ...     "name": "shop",
    ...     "data": {"train": "/data/train.parquet", "test": "/data/test.parquet", "validation": "0.5 of test"},
    ...     "tasks": {"buy": {"label": "bought", "positive": 1}},
    ... })
    >>> config.data.validation_fraction, config.tasks["buy"].positive, config.model.towers
    ((0.5, 'test'), [1], [64, 32])
    >>> validate({**config.model_dump(), "trainnig": {}})
    Traceback (most recent call last):
    ...
    gradalign.errors.UserError: "trainnig" in the config is not a known key. Did you mean "training"?
    """

    name: Annotated[str, Field(pattern=r"^\w[\w.\-]*$")] = Field(
        description="a letter, digit or _ followed by letters, digits and . _ -"
    )
    data: DataConfig = Field(description="a mapping with dataset, or with train and test")
    tasks: dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], TaskConfig] = Field(
        min_length=1, description="a mapping from task name (letters, digits, _) to {label, positive}"
    )
    features: FeaturesConfig = Field(
        FeaturesConfig(), description="a mapping with drop, numeric, categorical, multi_valued"
    )
    model: ModelConfig = Field(ModelConfig(), description="a mapping with architecture, shared_dim, towers and so on")
    alignment: AlignmentConfig = Field(
        AlignmentConfig(), description="a mapping with method, weight, schedule and so on"
    )
    training: TrainingConfig = Field(
        TrainingConfig(), description="a mapping with batch_size, epochs, learning_rate, seed and so on"
    )

    @model_validator(mode="after")
    def _tasks_are_whole(self) -> Config:
        for task, spec in self.tasks.items():
            if spec.loss.kind != "focal" and spec.loss.gamma is not None:
                raise ValueError(
                    f"tasks.{task}.loss has kind: {spec.loss.kind} and gamma: {spec.loss.gamma:g}; remove gamma, which "
                    "only kind: focal has."
                )
            if spec.where is not None:
                Condition.parse(spec.where, f"tasks.{task}.where")
            if spec.chain is None:
                continue
            if spec.chain not in self.tasks:
                raise ValueError(
                    f'tasks.{task}.chain names "{spec.chain}", which is no task of this config; it has '
                    f"{', '.join(self.tasks)}.{nearest(spec.chain, self.tasks)}"
                )
            if spec.where is not None:
                raise ValueError(
                    f"tasks.{task} has both chain: {spec.chain} and where: {spec.where}; a chained task is the product "
                    f"with {spec.chain} and is learnt from all rows, so remove where, or remove chain."
                )
            seen = [task]
            while (above := self.tasks[seen[-1]].chain) in self.tasks:
                seen.append(str(above))
                if above in seen[:-1]:
                    raise ValueError(f"tasks.{task}.chain comes back to itself: {' -> '.join(seen)}; cut it somewhere.")
        return self

    @model_validator(mode="after")
    def _labels_are_no_features(self) -> Config:
        for task, spec in self.tasks.items():
            for kind in ("numeric", "categorical", "multi_valued"):
                if spec.label in getattr(self.features, kind):
                    raise ValueError(
                        f'column "{spec.label}" is the label of task "{task}" and stands under features.{kind} too; '
                        f"remove it from features.{kind}, for a label among the inputs gives the answer away."
                    )
                condition = None if spec.where is None else Condition.parse(spec.where)
                if condition is not None and condition.column in getattr(self.features, kind):
                    raise ValueError(
                        f'column "{condition.column}" decides which rows have the label of task "{task}" (where: '
                        f"{condition}) and stands under features.{kind} too; remove it from features.{kind}, for what "
                        "decides it may not be known when the model is used."
                    )
            if spec.label == self.data.group:
                raise ValueError(
                    f'data.group is "{spec.label}", the label of task "{task}"; name a column that says whom a row is '
                    "of, such as a user, or null."
                )
        initial = self.model.initial_tasks
        if initial is not None and (len(set(initial)) < len(initial) or not set(self.tasks) <= set(initial)):
            raise ValueError(
                f"model.initial_tasks is {', '.join(initial)}; it must name every task once, those of this config "
                f"({', '.join(self.tasks)}) among them."
            )
        for task in self.alignment.tasks or []:
            if task not in self.tasks:
                known = ", ".join(self.tasks)
                raise ValueError(f'alignment.tasks names "{task}", which is no task of this config; it has {known}.')
        return self


def validate(raw: dict[str, Any], source: str = "the config") -> Config:
    """Check a parsed config and return it with all defaults filled in.

    Args:
        raw: the mapping that the YAML file holds.
        source: how errors name it: the file's path, say.

    Raises:
        UserError: an unknown key, a missing key, a wrong type or an impossible value; the first one found.
    """
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise one_sentence(error.errors(), raw, Config, source) from None
