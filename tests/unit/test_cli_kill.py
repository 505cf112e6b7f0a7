"""Which sandboxes `atoll kill` means, and what it does where nothing runs any more."""

import os
from pathlib import Path

import pytest

from atoll.client.remote import Remote, kill_remote, list_remote, select
from atoll.model.errors import InvalidSpecError, NotFoundError
from atoll.teardown.state import KILL_MARK, SANDBOXES


def remote(sandbox_id: str, name: str) -> Remote:
    return Remote(id=sandbox_id, name=name, level="process", template="host", owner_pid=1, alive=True, age_s=1.0)


FOUND = [
    remote("aaaaaaaa", "one"),
    remote("bbbbbbbb", "two"),
    remote("cccccccc", "two"),
    remote("dddddddd", "aaaaaaaa"),
]


def test_ids_and_names_each_once_and_ids_first() -> None:
    assert [one.id for one in select(FOUND, ["one", "bbbbbbbb", "aaaaaaaa"])] == ["aaaaaaaa", "bbbbbbbb"]
    assert select(FOUND, []) == []


def test_unknown_is_an_error_that_names_it() -> None:
    with pytest.raises(NotFoundError, match=r"no such id or name, got 'three'") as caught:
        select(FOUND, ["one", "three"])
    assert caught.value.hint == "`atoll ps` lists them"


def test_a_name_of_several_is_refused_with_their_ids() -> None:
    with pytest.raises(InvalidSpecError, match="the name of several") as caught:
        select(FOUND, ["two"])
    assert caught.value.hint == "use an id: bbbbbbbb, cccccccc"


def test_one_that_went_meanwhile_is_no_error_and_nothing_is_made(tmp_path: Path) -> None:
    assert [one.outcome for one in kill_remote(tmp_path, [remote("aaaaaaaa", "one")])] == ["killed"]
    assert os.listdir(tmp_path / SANDBOXES) == []
    assert list_remote(tmp_path) == []


def test_the_mark_is_not_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("x")
    directory = tmp_path / SANDBOXES / "aaaaaaaa"
    directory.mkdir(parents=True, mode=0o700)
    (tmp_path / SANDBOXES).chmod(0o700)
    (directory / KILL_MARK).symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"):
        kill_remote(tmp_path, [remote("aaaaaaaa", "one")], timeout_s=0.1)
    assert not (tmp_path / "made").exists()
