import pytest

from gradalign.layers import Categorical, MultiValued, Numeric, field_from_config, field_to_config
from gradalign.layers.fields import check_fields, is_input_name, is_output_name


@pytest.mark.parametrize("field", [Categorical(7), Numeric(), MultiValued(9), MultiValued(9, padding_id=8)])
def test_a_field_survives_its_config(field):
    assert field_from_config(field_to_config(field)) == field


@pytest.mark.parametrize("size", [0, -1, 2.0, "3", True, None])
def test_a_size_that_is_no_positive_whole_number_is_quoted(size):
    with pytest.raises(ValueError, match=f"`size` of Categorical .* received {size!r}"):
        Categorical(size)


def test_multi_valued_needs_room_for_padding_and_one_id():
    with pytest.raises(ValueError, match="at least 2, received 1"):
        MultiValued(1)
    with pytest.raises(ValueError, match=r"id in \[0, 3\), received 3"):
        MultiValued(3, padding_id=3)
    with pytest.raises(ValueError, match=r"id in \[0, 3\), received -1"):
        MultiValued(3, padding_id=-1)


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(ValueError, match=r"received 'numerik'. Did you mean \"numeric\""):
        field_from_config({"kind": "numerik"})
    with pytest.raises(ValueError, match="received 3"):
        field_to_config(3)


def test_fields_must_be_a_mapping_of_names_to_fields():
    for empty in ({}, [], None):
        with pytest.raises(ValueError, match="at least one field name"):
            check_fields(empty)
    with pytest.raises(ValueError, match="non-empty string, received 3"):
        check_fields({3: Numeric()})
    with pytest.raises(TypeError, match=r'Field "age" must be .* received 5'):
        check_fields({"age": 5})


@pytest.mark.parametrize("name", ["native country", "年龄", "_a", "1a", "class", "self", "a-b", "a.b", "a/b", ""])
def test_names_that_no_served_model_can_have(name):
    assert not is_input_name(name)


def test_names_that_are_fine():
    assert all(map(is_input_name, ["a", "A1", "det_ind_code", "training", "x__y"]))
    assert all(map(is_output_name, ["buy", "1st", "a.b", "a-b"]))
    assert not any(map(is_output_name, ["buy it", "", "_x", "点击", "a/b"]))
