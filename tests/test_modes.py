"""The table of modes is the only definition of modes: schema, codes and names agree with it."""

import pytest

from edge_offload import mode as modes
from edge_offload import records
from edge_offload.errors import BadInput


def test_every_mode_has_facts_and_a_distinct_code():
    assert set(modes.TABLE) == set(modes.Mode)
    codes = [info.code for info in modes.TABLE.values()]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes, "0 is what an unset message field holds"


def test_schema_lists_the_same_modes():
    assert tuple(records.schema()["$defs"]["mode"]["enum"]) == modes.names()


def test_auto_is_a_policy_not_a_mode():
    with pytest.raises(BadInput, match="policy"):
        modes.parse_mode("auto")


@pytest.mark.parametrize("text", ["local", " Server ", "per_op"])
def test_names_parse(text):
    assert modes.parse_mode(text).value == text.strip().lower()
