"""What `--methods` names, what each changes of the config, and what is refused."""

from __future__ import annotations

import typing

import pytest

from gradalign.comparison.methods import methods_named, names
from gradalign.errors import UserError
from gradalign.training.config import AlignmentConfig
from gradalign.training.config_file import load_config
from tests.unit.comparison.fakes import small_config


def _choices(key):
    return typing.get_args(AlignmentConfig.model_fields[key].annotation)


def test_every_alignment_and_objective_of_the_schema_is_a_method():
    config = load_config("synthetic")
    found = methods_named(",".join(names()), config)
    assert [method.name for method in found] == names()
    for name, method in zip(names(), found, strict=True):
        alignment = method.config(config).alignment
        if name in _choices("method"):
            assert alignment.method == name
        elif name in _choices("objective"):
            assert (alignment.method, alignment.objective) == ("adversarial", name)
        else:
            assert name in ("single", "weights") and alignment.method == "none"
    assert set(_choices("method")) | set(_choices("objective")) < set(names())


def test_the_plain_sum_comes_first_and_once():
    config = load_config("synthetic")
    assert [m.name for m in methods_named("mmd, none,single", config)] == ["none", "mmd", "single"]


def test_options_that_a_method_lacks_do_not_come_from_the_config():
    config = load_config("synthetic", ["alignment.objective=wasserstein", "alignment.gradient_penalty=3"])
    _, cosine, confusion, own = methods_named("cosine,confusion,adversarial", config)
    assert cosine.config(config).alignment.model_dump() == {
        **AlignmentConfig(method="cosine").model_dump(),
        "reach": "shared",  # which cosine has, too
    }
    assert confusion.config(config).alignment.gradient_penalty == 10.0
    assert own.config(config) == config
    smooth = load_config("synthetic", ["alignment.label_smoothing=0.1"])
    assert methods_named("wasserstein", smooth)[1].config(smooth).alignment.label_smoothing == 0.0


def test_a_file_overrides_keys_and_is_named_by_its_stem(tmp_path):
    path = tmp_path / "heavy.yaml"
    path.write_text("alignment: {method: mmd, weight: 0.5}\ntasks: {sparse: {loss_weight: 2.0}}\n")
    config = load_config("synthetic")
    method = methods_named(str(path), config)[1]
    changed = method.config(config)
    assert (method.name, changed.alignment.method, changed.alignment.weight) == ("heavy", "mmd", 0.5)
    assert changed.alignment.reach == "shared" and changed.training == config.training
    assert (changed.tasks["sparse"].loss_weight, changed.tasks["dense"].loss_weight) == (2.0, 1.0)


def test_each_task_alone_has_no_other_label_among_its_features(tmp_path):
    (tmp_path / "shop.yaml").write_text(
        """
data: {train: a.csv, test: b.csv}
tasks:
  click: {label: clicked, positive: 1}
  buy: {label: bought, positive: 1, chain: click, loss_weight: 3}
  keep: {label: kept, positive: 1, where: "bought == 1"}
  rate: {label: stars, positive: 5, where: "seen != null"}
features: {drop: [id], categorical: [city]}
"""
    )
    config = load_config(tmp_path / "shop.yaml")
    single = methods_named("single", config)[1]
    runs = single.runs(single.config(config))
    assert list(runs) == ["click", "buy", "keep", "rate"]
    assert runs["click"].features.drop == ["id", "bought", "kept", "stars", "seen"]
    assert runs["keep"].features.drop == [
        "id",
        "clicked",
        "stars",
        "seen",
    ]  # what its own `where` looks at is no feature
    buy = runs["buy"]
    assert list(buy.tasks) == ["buy"] and (buy.tasks["buy"].chain, buy.tasks["buy"].loss_weight) == (None, 1.0)
    assert buy.model.initial_tasks == list(config.tasks) and buy.alignment.method == "none"


@pytest.mark.parametrize(
    ("methods", "content", "said"),
    [
        ("adversarail", "", 'has "adversarail", which is no method.*Did you mean "adversarial"'),
        ("cosine,cosine", "", '"cosine" twice'),
        ("none", "", "none but the plain sum"),
        ("nowhere.yaml", "", "nowhere.yaml"),
        ("{}/mmd.yaml", "alignment: {weight: 1}", '"mmd" is the name of a method already'),
        ("{}/m.yaml", "alignment: {weigth: 1}", 'Did you mean "alignment.weight"'),
        ("{}/m.yaml", "- 1", "must be a mapping"),
        ("{}/m.yaml", "data: {limit: 5}", "changes data, which all methods share"),
        ("{}/m.yaml", "training: {seed: 5}", "changes training.seed, which --seeds sets"),
        ("{}/m.yaml", "tasks: {sparse: {positive: 0}}", "changes the tasks or their labels"),
        ("{}/m.yaml", "tasks: {more: {label: more, positive: 1}}", "changes the tasks or their labels"),
    ],
)
def test_what_is_refused(methods, content, said, tmp_path):
    (tmp_path / methods.rpartition("/")[2]).write_text(content) if content else None
    with pytest.raises(UserError, match=said):
        methods_named(methods.format(tmp_path), small_config())


def test_methods_that_need_more_than_the_config_has():
    one = small_config("tasks={sparse: {label: sparse_label, positive: 1}}")
    for name in ("single", "weights", "adversarial"):
        with pytest.raises(UserError, match=f"Method {name} is for two tasks or more"):
            methods_named(name, one)


def test_weights_need_a_validation_part(tmp_path):
    tasks = "tasks: {a: {label: a, positive: 1}, b: {label: b, positive: 1}}"
    (tmp_path / "c.yaml").write_text(f"data: {{train: a.csv, test: b.csv}}\n{tasks}")
    with pytest.raises(UserError, match=r"chooses by the validation part.*set data\.validation"):
        methods_named("weights", load_config(tmp_path / "c.yaml"))
