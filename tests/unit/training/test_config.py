"""The config: what it takes, what it refuses and in which words, and that a written config reads back as itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from gradalign.errors import UserError
from gradalign.training.config import Config, validate
from gradalign.training.config_file import bundled_configs, dump_config, load_config

SMALL = """
data: {train: rows/train.parquet, test: test.csv, validation: 0.5 of test}
tasks:
  buy: {label: bought, positive: 1}
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "shop.yaml"
    path.write_text(text)
    return path


def test_the_smallest_config_has_the_documented_defaults(tmp_path):
    config = load_config(_write(tmp_path, SMALL))
    assert config.name == "shop"
    assert config.tasks["buy"].positive == [1] and config.tasks["buy"].loss_weight == 1.0
    assert config.model.model_dump() == {
        "architecture": "shared_private",
        "shared_dim": 8,
        "private_dim": 4,
        "towers": [64, 32],
        "activation": "gelu",
        "dropout": 0.0,
        "initial_tasks": None,
    }
    assert (config.alignment.method, config.alignment.weight, config.alignment.normalize) == (
        "adversarial",
        0.1,
        "batch",
    )
    assert (config.training.batch_size, config.training.epochs, config.training.seed) == (1024, 5, 0)


def test_a_task_has_a_loss_a_condition_and_a_chain(tmp_path):
    tasks = """
  click: {label: clicked, positive: 1, loss: {kind: focal, pos_weight: 5}}
  like: {label: liked, positive: 1, where: "'page kind' != null"}
  buy: {label: bought, positive: 1, chain: click}
"""
    config = load_config(_write(tmp_path, SMALL.replace("\n  buy: {label: bought, positive: 1}\n", tasks)))
    assert config.tasks["like"].loss.model_dump() == {
        "kind": "binary_crossentropy",
        "pos_weight": 1.0,
        "label_smoothing": 0.0,
        "gamma": None,
    }
    # What the paper of focal loss takes is written out.
    assert (config.tasks["click"].loss.gamma, config.tasks["click"].loss.pos_weight) == (2.0, 5.0)
    assert (config.tasks["like"].where, config.tasks["buy"].where) == ("'page kind' != null", None)
    assert (config.tasks["buy"].chain, config.tasks["click"].chain) == ("click", None)
    assert load_config(_write(tmp_path, dump_config(config))) == config


def test_chains_of_chains():
    def of(**chains):
        tasks = {task: {"label": "y", "positive": 1, "chain": above} for task, above in chains.items()}
        return validate({"name": "a", "data": {"train": "a.csv", "test": "b.csv"}, "tasks": tasks})

    assert of(a="b", b="c", c=None).tasks["a"].chain == "b"
    for ring, said in (({"a": "b", "b": "a"}, "a -> b -> a"), ({"a": "b", "b": "c", "c": "b"}, "a -> b -> c -> b")):
        with pytest.raises(UserError, match=f"comes back to itself: {said}; cut it"):
            of(**ring)


def test_paths_are_relative_to_the_file_and_overridden_ones_to_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(_write(tmp_path, SMALL), ["data.test=other.parquet", "data.validation=v.csv"])
    assert config.data.train == str(tmp_path / "rows" / "train.parquet")
    assert config.data.test == str(tmp_path / "elsewhere" / "other.parquet")
    assert config.data.validation == str(tmp_path / "elsewhere" / "v.csv")


@pytest.mark.parametrize(
    ("text", "fraction"),
    [("0.5 of test", (0.5, "test")), (" .25  of train", (0.25, "train")), ("of test.csv", None)],
)
def test_validation_is_a_share_of_a_part_or_a_path(text, fraction):
    raw = {"name": "a", "data": {"train": "a.csv", "test": "b.csv", "validation": text}}
    config = validate({**raw, "tasks": {"t": {"label": "y", "positive": [1]}}})
    assert config.data.validation_fraction == fraction


def test_numbers_are_yaml_1_2(tmp_path):
    text = SMALL.replace("positive: 1", "positive: no") + "training: {learning_rate: 1e-3}\nalignment: {weight: 1}\n"
    config = load_config(_write(tmp_path, text))
    assert config.training.learning_rate == 0.001
    assert config.tasks["buy"].positive == ["no"]  # a word, where YAML 1.1 had false
    assert config.alignment.weight == 1.0


def test_overrides_set_and_replace_and_leave_the_rest(tmp_path):
    overrides = ["training.epochs=2", "model.towers=[16]", "tasks.buy.positive=[yes, 2]", "alignment.method=none"]
    config = load_config(_write(tmp_path, SMALL), overrides)
    assert config.training.epochs == 2 and config.training.batch_size == 1024
    assert config.model.towers == [16] and config.tasks["buy"].positive == ["yes", 2]
    assert config.alignment.method == "none" and config.alignment.weight == 0.1


def test_columns_can_be_listed_or_given_options(tmp_path):
    features = "features: {numeric: [age], categorical: {city: {min_count: 5}, zip: }, drop: [id]}\n"
    config = load_config(_write(tmp_path, SMALL + features))
    assert config.features.model_dump(exclude_none=True) == {
        "drop": ["id"],
        "numeric": {"age": {"transform": "bucket"}},
        "categorical": {"city": {"min_count": 5}, "zip": {"min_count": 2}},
        "multi_valued": {},
    }


@pytest.mark.parametrize("name", list(bundled_configs()))
def test_a_written_config_reads_back_as_itself_from_another_folder(name, tmp_path, monkeypatch):
    config = load_config(name)
    monkeypatch.chdir(tmp_path)
    assert load_config(_write(tmp_path, dump_config(config))) == config


def test_values_that_look_like_other_types_survive_being_written(tmp_path):
    awkward = ["1e5", "null", "true", "0x10", "~", "", " a", "no", "1", "ü: #x", "a\nb", 1, 1.0, 1e-7, True, "- x"]
    raw = {"name": "1", "data": {"train": "/a.csv", "test": "/b.csv"}}
    config = validate({**raw, "tasks": {"t": {"label": "1e5", "positive": awkward}}})
    back = load_config(_write(tmp_path, dump_config(config)))
    assert back.tasks["t"].positive == awkward
    assert [type(v) for v in back.tasks["t"].positive] == [type(v) for v in awkward]
    assert back == config


def test_the_bundled_config_explains_each_key():
    text = bundled_configs()["census-income"]
    for section, field in Config.model_fields.items():
        keys = getattr(field.annotation, "model_fields", {})
        for key in (section, *keys):
            lines = text.splitlines()
            at = [i for i, line in enumerate(lines) if line.strip().lstrip("# ").startswith(f"{key}:")]
            assert at, f"{section}.{key} is not in the bundled config"


def test_the_synthetic_config_has_the_arguments_and_defaults_of_the_data_set():
    import inspect

    from gradalign.datasets import synthetic
    from gradalign.training.synthetic_config import SyntheticConfig

    defaults = {name: parameter.default for name, parameter in inspect.signature(synthetic).parameters.items()}
    assert SyntheticConfig().model_dump() == {**defaults, "labelled_share": dict(defaults["labelled_share"])}
    assert load_config("synthetic").data.synthetic == SyntheticConfig()
    assert validate({**load_config("synthetic").model_dump(), "data": {"dataset": "synthetic"}}).data.synthetic


def test_the_bundled_config_says_what_the_bundled_data_set_says():
    from gradalign.data import infer_schema
    from gradalign.datasets import census_income
    from gradalign.training.encoding import tasks_of

    config, census = load_config("census-income"), census_income()
    tasks = tasks_of(config)
    assert list(tasks) == list(census.tasks)
    assert {t: (s.label, set(s.positive)) for t, s in tasks.items()} == {
        t: (s.label, set(s.positive)) for t, s in census.tasks.items()
    }
    schema = infer_schema(census.train, tasks, config.features.model_dump(exclude_none=True))
    assert (schema.numeric, schema.categorical, schema.drop) == (
        census.schema.numeric,
        census.schema.categorical,
        census.schema.drop,
    )


REFUSED = {
    # an unknown key names the nearest known one, with its path
    "training.epoch=1": ['"training.epoch"', 'Did you mean "training.epochs"?'],
    "epochs=1": ['"epochs"', 'Did you mean "training.epochs"?'],
    "trainng.epochs=1": ['"trainng"', 'Did you mean "training"?'],
    "tasks.income.labl=x": ['"tasks.income.labl"', 'Did you mean "tasks.income.label"?'],
    "features.numeric.age.bukets=5": ['Did you mean "features.numeric.age.buckets"?'],
    "training.zzz=1": ["The keys there are: batch_size, epochs"],
    # a wrong type or value names the key, the value, and what is wanted
    "training.epochs=two": ['training.epochs is "two"', "a whole number, 1 or more"],
    "training.epochs=1.5": ["training.epochs is 1.5", "a whole number"],
    "training.epochs=true": ["training.epochs is true", "a whole number"],
    "training.batch_size=0": ["training.batch_size is 0", "1 or more"],
    "training.learning_rate=0": ["training.learning_rate is 0", "above 0"],
    "training.learning_rate=.nan": ["training.learning_rate is NaN"],
    "training.learning_rate=.inf": ["training.learning_rate is Infinity"],
    "training.seed=-1": ["training.seed is -1", "0 or more"],
    "training.monitor_every=-1": ["training.monitor_every is -1", "0 for never"],
    "training.jit_compile=maybe": ['training.jit_compile is "maybe"', "true, false"],
    "training=null": ["training is null", "a mapping"],
    "alignment.weight=-0.1": ["alignment.weight is -0.1", "0 or more"],
    "alignment.schedule=fast": ['alignment.schedule is "fast"', "ganin"],
    "alignment.schedule=-1": ["alignment.schedule is -1"],
    "alignment.normalize=l1": ['alignment.normalize is "l1"', '"batch", "l2" or "none"'],
    "alignment.method=coral": ['alignment.method is "coral"', '"moments"'],
    "alignment={method: cosine, normalize: l2}": [
        "normalize is l2",
        "method is cosine",
        "adversarial or mmd or moments",
    ],
    "alignment={method: mmd, objective: confusion}": ["objective is confusion", "take method: adversarial"],
    "alignment={method: great, every: 2}": ["every is 2", "method is great", "adversarial or cosine or mmd or moments"],
    "alignment.bandwidth=2": ["alignment.bandwidth is 2", "take method: mmd"],
    "alignment.gradient_penalty=1": ["objective: wasserstein alone"],
    "alignment={objective: wasserstein, label_smoothing: 0.1}": [
        "label_smoothing has no place in objective: wasserstein"
    ],
    "alignment={method: moments, mean: 0, covariance: 0}": ["mean and alignment.covariance are both 0"],
    "alignment.tasks=[income, x]": ['names "x"', "income, college, never_married"],
    "alignment.tasks=[income]": ["alignment.tasks is", "two task names"],
    "model.towers=[64, -1]": ["model.towers is [64, -1]", "whole numbers"],
    "model.dropout=1": ["model.dropout is 1"],
    "model.activation=rellu": ['model.activation is "rellu"'],
    "tasks={}": ["tasks is {}"],
    "tasks.income=5": ["tasks.income is 5", "label, positive"],
    "tasks.a b={label: x, positive: 1}": ["tasks.a b", "letters, digits, _"],
    "tasks.a.positive=1": ["tasks.a.label is missing", "the name of a column"],
    "tasks.income.positive=[]": ["tasks.income.positive is []"],
    "tasks.income.positive=null": ["tasks.income.positive is null"],
    "tasks.income.loss_weight=-1": ["tasks.income.loss_weight is -1", "0 or more"],
    # a task's loss, condition and chain
    "tasks.income.loss.pos_wieght=5": ['Did you mean "tasks.income.loss.pos_weight"?'],
    "tasks.income.loss.kind=hinge": ['tasks.income.loss.kind is "hinge"', '"focal"'],
    "tasks.income.loss=focal": ['tasks.income.loss is "focal"', "kind, pos_weight"],
    "tasks.income.loss.pos_weight=0": ["tasks.income.loss.pos_weight is 0", "above 0"],
    "tasks.income.loss.label_smoothing=1": ["tasks.income.loss.label_smoothing is 1"],
    "tasks.income.loss={kind: focal, gamma: -1}": ["tasks.income.loss.gamma is -1", "0 or more"],
    "tasks.income.loss.gamma=2": ["tasks.income.loss has kind: binary_crossentropy and gamma: 2"],
    "tasks.income.where=sex": ['tasks.income.where is "sex"', '"click == 1"'],
    "tasks.income.where=sex = Male": ['tasks.income.where is "sex = Male"', "write == for equal"],
    "tasks.income.where=age > 30": ['tasks.income.where is "age > 30"', "a column of their own"],
    "tasks.income.where=\"'' == 1\"": ["names no column"],
    "tasks.income.where=5": ["tasks.income.where is 5", "null, or a condition"],
    "tasks.income.where=age == 30": ['"age" decides which rows', 'task "income"', "features.numeric"],
    "tasks.income.chain=colege": ['tasks.income.chain names "colege"', 'Did you mean "college"?'],
    "tasks.income.chain=income": ["comes back to itself: income -> income"],
    "tasks.income={label: income_50k, positive: x, chain: college, where: sex == Male}": ["both chain", "remove where"],
    "features.categorical=[education]": ['"education" is the label of task "college"', "features.categorical"],
    "features.drop=[age]": ["features.drop", "features.numeric"],
    "features.numeric.age=5": ["features.numeric.age is 5"],
    "features.numeric.age.buckets=1": ["features.numeric.age.buckets is 1", "2 or more"],
    "features.numeric.age.transform=project": ["transform: project", "remove buckets"],
    "data.dataset=cencus": ['data.dataset is "cencus"', "census-income"],
    "data.synthetic={}": ["set data.dataset to synthetic"],
    "data={dataset: synthetic, synthetic: {corelation: 1}}": ['Did you mean "data.synthetic.correlation"?'],
    "data={dataset: synthetic, synthetic: {noise: 0}}": ["data.synthetic.noise is 0", "above 0"],
    "data={dataset: synthetic, synthetic: {labelled_share: {a: 2}}}": ["data.synthetic.labelled_share", "up to 1"],
    "data={dataset: synthetic, labelled_rows: {sparse: 5}}": ["set data.synthetic.labelled_share instead"],
    "data={train: a.csv, test: b.csv, labelled_rows: {buy: 5}}": ["is for the data set census-income; remove it"],
    "data.labelled_rows.income=0": ["data.labelled_rows", "1 or more"],
    "data.train=x.csv": ["data.train has no place"],
    "data={train: a.csv}": ["data.test is missing"],
    "data={train: a.csv, test: b.csv, validation: 1.5 of test}": ["1.5 of test", "between 0 and 1"],
    "data={train: a.csv, test: b.csv, validation: 0.5 of tset}": ["0.5 of tset", "of train"],
    "data=null": ["data is null"],
    "name=a/b": ['name is "a/b"'],
    # --set itself
    "training.epochs": ["key=value"],
    "=1": ["key=value"],
    "training.epochs=[1": ["not valid YAML"],
    "training.epochs.x=1": ["finds", "at training.epochs, not a mapping"],
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(override):
    with pytest.raises(UserError) as raised:
        load_config("census-income", [override])
    said = str(raised.value)
    for words in REFUSED[override]:
        assert words in said
    assert "\n" not in said and "pydantic" not in said


BROKEN = {
    "a: [1\nb: 2": ["not valid YAML", "line 2"],
    "a: b: c": ["not valid YAML", "line 1"],
    "\ta: 1": ["not valid YAML"],
    "a: 1\na: 2": ['has the key "a" twice', "line 2"],
    "training: {epochs: 1, epochs: 2}": ['has the key "epochs" twice'],
    "a: !!python/object:os.system 1": ["not valid YAML"],
    "- 1": ["holds [1]", "a mapping"],
    "": ["holds null", "a mapping"],
    "tasks: {t: {label: y, positive: 1}}": ["data is missing"],
}


@pytest.mark.parametrize("text", BROKEN)
def test_broken_yaml_is_refused_with_its_line(text, tmp_path):
    path = _write(tmp_path, text)
    with pytest.raises(UserError) as raised:
        load_config(path)
    said = str(raised.value)
    for words in [str(path), *BROKEN[text]]:
        assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nope.yaml", ["There is no config", "census-income"]),
        ("census-incom", ['Did you mean "census-income"?']),
        (".", ["is a folder"]),
    ],
)
def test_a_config_that_is_not_there(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        load_config(name)
    assert all(word in str(raised.value) for word in words)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match="not UTF-8"):
        load_config(path)


def test_the_schema_loads_no_tensorflow():
    code = (
        "import sys; from gradalign.training.config_file import load_config; load_config('census-income');"
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'keras', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
