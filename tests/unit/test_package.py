"""The package as a whole: its public surface, that naming it loads nothing, and what it says where it cannot work."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import keras
import pytest

import gradalign
from gradalign import _environment

PUBLIC = [
    "AdversarialAlignment",
    "CosineAlignment",
    "GREATAlignment",
    "GradAlignWarning",
    "GradientReversal",
    "MMDAlignment",
    "MomentAlignment",
    "MultiTaskModel",
    "UserError",
    "__version__",
    "alignment",
    "architectures",
    "callbacks",
    "check_second_order",
    "data",
    "datasets",
    "diagnostics",
    "gradients",
    "layers",
    "losses",
    "make_twice_differentiable",
    "optimizers",
    "probe",
    "reverse_gradient",
    "task_gradients",
    "training",
]


def python(code: str, given: str = "", **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `code` on `given` in a process of its own, with Keras' own variables as given here only."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("KERAS_") and k != "TF_USE_LEGACY_KERAS"}
    variables = {**inherited, **{k: str(v) for k, v in environment.items()}}
    return subprocess.run(
        [sys.executable, "-c", code], input=given, env=variables, text=True, capture_output=True, timeout=120
    )


def last_line(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stderr.strip().splitlines()[-1]


@pytest.fixture
def keras_home(tmp_path: Path) -> Path:
    """A KERAS_HOME without settings, so that the machine's own do not reach the test."""
    return tmp_path


# --- Public surface ---------------------------------------------------------------------------------------------------


def test_public_surface_is_exactly_this():
    assert sorted(gradalign.__all__) == PUBLIC
    assert dir(gradalign) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_loads(name):
    assert getattr(gradalign, name) is getattr(gradalign, name)
    assert name in vars(gradalign), "a name that was loaded is kept"
    assert inspect.ismodule(getattr(gradalign, name)) == (":" not in gradalign._PUBLIC[name]), "a module hides it"


def test_type_checkers_see_the_same_names():
    [block] = [n for n in ast.parse(inspect.getsource(gradalign)).body if isinstance(n, ast.If)]
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(PUBLIC)


def test_unknown_name_is_an_attribute_error_with_the_nearest_name():
    with pytest.raises(AttributeError, match=r"no attribute 'MultitaskModel'\. Did you mean \"MultiTaskModel\"\?"):
        _ = gradalign.MultitaskModel
    assert not hasattr(gradalign, "no_such_name")


def test_version_is_the_installed_one():
    assert gradalign.__version__ == metadata.version("gradalign")


# --- Lazy -------------------------------------------------------------------------------------------------------------


def test_naming_the_package_loads_no_tensorflow(keras_home):
    code = "import sys, gradalign; dir(gradalign); gradalign.UserError; print(*sys.modules)"
    run = python(code, KERAS_HOME=keras_home)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "gradalign" in loaded, run.stderr
    assert not loaded & {"tensorflow", "keras", "torch", "numpy", "pyarrow", "pydantic", "sklearn"}


# --- Environment ------------------------------------------------------------------------------------------------------


# Each import of many, in a process that has loaded neither Keras nor TensorFlow.
IMPORTS = """
import json, os, sys
said, as_it_was = [], dict(os.environ)
for variables in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update({**as_it_was, **variables})
    for name in [name for name in sys.modules if name.partition(".")[0] == "gradalign"]:
        del sys.modules[name]
    try:
        import gradalign
    except ImportError as error:
        said.append(str(error))
    else:
        said.append(None)
assert not {"keras", "tensorflow"} & sys.modules.keys()
print(json.dumps(said))
"""


def said_on_import(home: Path, *environments: dict[str, str | Path]) -> list[str | None]:
    """What `import gradalign` says under each of these variables, with `home` for KERAS_HOME where they name none."""
    given = json.dumps([{k: str(v) for k, v in variables.items()} for variables in environments])
    run = python(IMPORTS, given, KERAS_HOME=home)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_another_backend_is_refused(keras_home):
    values = ("jax", "torch", "TensorFlow")
    assert said_on_import(keras_home, *({"KERAS_BACKEND": value} for value in values)) == [
        f"GradAlign needs Keras on its TensorFlow backend, and KERAS_BACKEND is {value}; "
        "unset it or set KERAS_BACKEND=tensorflow before Python starts."
        for value in values
    ]


def test_tensorflow_backend_is_taken(keras_home):
    assert said_on_import(keras_home, {"KERAS_BACKEND": ""}, {"KERAS_BACKEND": "tensorflow"}) == [None, None]


def test_another_backend_in_the_settings_file_is_refused(keras_home):
    settings = keras_home / "keras.json"
    settings.write_text(json.dumps({"floatx": "float32", "backend": "torch"}))
    assert said_on_import(keras_home, {}, {"KERAS_BACKEND": "tensorflow"}) == [
        f'GradAlign needs Keras on its TensorFlow backend, and {settings} says "backend": "torch"; '
        'change it to "tensorflow" there, or set KERAS_BACKEND=tensorflow before Python starts.',
        None,
    ]


def test_settings_file_is_found_in_the_home_folder(tmp_path):
    folder = tmp_path / ".keras"
    folder.mkdir()
    (folder / "keras.json").write_text('{"backend": "jax"}')
    assert str(folder / "keras.json") in last_line(python("import gradalign", HOME=tmp_path))


def test_settings_file_without_another_backend_is_taken(tmp_path):
    homes = []
    for number, text in enumerate(["{", "[]", "{}", '{"backend": "tensorflow"}']):
        homes.append(tmp_path / str(number))
        homes[-1].mkdir()
        (homes[-1] / "keras.json").write_text(text)
    assert said_on_import(tmp_path, *({"KERAS_HOME": home} for home in homes)) == [None] * 4


def test_keras_already_loaded_on_another_backend_is_refused(keras_home):
    """A stand-in says what Keras would, after it has loaded PyTorch."""
    code = (
        "import sys, types; config = types.SimpleNamespace(backend=lambda: 'torch'); "
        "sys.modules['keras'] = types.SimpleNamespace(config=config); import gradalign"
    )
    assert last_line(python(code, KERAS_HOME=keras_home)) == (
        "ImportError: GradAlign needs Keras on its TensorFlow backend, and Keras is already loaded on "
        '"torch"; start Python again with KERAS_BACKEND=tensorflow.'
    )


@pytest.mark.slow
def test_keras_already_loaded_on_tensorflow_is_taken_whatever_the_variable_says_since(tmp_path, keras_home):
    """And it loads a saved model; in the other order of imports, `test_multi_task_model_saving.py` does so.

    Keras looks for its settings where we look.
    """
    (keras_home / "keras.json").write_text(json.dumps({"floatx": "float16"}))
    x = keras.Input((2,))
    s = keras.layers.Dense(2, name="s")(x)
    base = keras.Model(x, {task: keras.layers.Dense(1, "sigmoid", name=task)(s) for task in ("t", "u")})
    model = gradalign.MultiTaskModel(base, "s", gradalign.AdversarialAlignment())
    model.compile("adam", loss="binary_crossentropy")
    path = tmp_path / "model.keras"
    model.save(path)
    code = (
        "import os, keras; print(keras.config.backend(), keras.config.floatx()); os.environ['KERAS_BACKEND'] = 'jax'; "
        f"import gradalign; print(keras.models.load_model({str(path)!r}).tasks)"
    )
    run = python(code, KERAS_HOME=keras_home)
    assert run.stdout.splitlines() == ["tensorflow float16", "['t', 'u']"], run.stderr


def test_legacy_keras_is_refused(keras_home):
    values = ("1", "true", "True")
    assert said_on_import(keras_home, *({"TF_USE_LEGACY_KERAS": value} for value in values)) == [
        f"GradAlign needs Keras 3, and TF_USE_LEGACY_KERAS={value} sends tf.keras to Keras 2; "
        "unset TF_USE_LEGACY_KERAS before Python starts."
        for value in values
    ]


def test_legacy_keras_switched_off_is_taken(keras_home):
    assert said_on_import(keras_home, *({"TF_USE_LEGACY_KERAS": value} for value in ("", "0", "false"))) == [None] * 3


@pytest.mark.parametrize(
    ("module", "title", "version"), [("tensorflow", "TensorFlow", "2.9.3"), ("keras", "Keras", "3.9.2")]
)
def test_an_older_release_is_refused(module, title, version, tmp_path, keras_home):
    package = tmp_path / f"{module}-{version}.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    floor = ".".join(map(str, _environment.FLOORS[module]))
    assert last_line(python("import gradalign", PYTHONPATH=path, KERAS_HOME=keras_home)) == (
        f"ImportError: GradAlign needs {title} {floor} or newer, and {version} is installed; "
        f'install it with: pip install "{module}>={floor}"'
    )


def test_a_missing_tensorflow_is_said(tmp_path):
    """With nothing but GradAlign's own source on the path."""
    source = Path(inspect.getfile(gradalign)).parents[1]
    code = f"import sys; sys.path.insert(0, {str(source)!r}); import gradalign"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], text=True, capture_output=True, timeout=120)
    assert last_line(run) == (
        "ImportError: GradAlign needs TensorFlow 2.18 or newer, and it is not installed; "
        'install it with: pip install "tensorflow>=2.18"'
    )


def test_floors_are_the_ones_that_the_package_asks_for():
    asked = dict(re.findall(r"^(tensorflow|keras)>=(\d+\.\d+)$", "\n".join(metadata.requires("gradalign") or []), re.M))
    assert asked == {module: ".".join(map(str, floor)) for module, floor in _environment.FLOORS.items()}
