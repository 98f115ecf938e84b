import keras
import pytest


@pytest.fixture
def floatx64():
    """Learning rates are kept in floatx; the suite's own fixture puts it back."""
    keras.config.set_floatx("float64")
