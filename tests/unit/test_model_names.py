"""Sandbox ids: never the same, and never anything that could leave a directory."""

import re

import pytest

from atoll.kernel.cgroupfs import check_name
from atoll.model.errors import InvalidSpecError
from atoll.model.names import check_id, new_id


def test_new_ids_pass_every_check_and_differ():
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    for each in ids:
        assert re.fullmatch(r"[a-z0-9]{20}", each)
        assert check_id(each) == check_name(each) == each


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * 7,
        "a" * 65,
        "../../../etc",
        "abcdefgh/",
        "abcdefgh\n",
        "ABCDEFGHIJ",
        "abcdefg-h",
        "abcdefgé",
        "a.b.c.d.e",
    ],
    ids=repr,
)
def test_what_is_no_id(text: str):
    with pytest.raises(InvalidSpecError, match="sandbox id"):
        check_id(text)
