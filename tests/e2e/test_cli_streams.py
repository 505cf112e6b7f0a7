"""C07: output is bytes. What a command reads and writes passes through `atoll run` unchanged, as it comes."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Atoll

MEBIBYTE = os.urandom(1 << 20)


def test_every_byte_passes_through_both_ways(atoll: Atoll) -> None:
    data = bytes(range(256)) + MEBIBYTE
    done = atoll("run", "--", "cat", stdin=data)
    assert done.stdout == data
    assert (done.returncode, done.stderr) == (0, b"")


def test_streams_stay_apart(atoll: Atoll) -> None:
    done = atoll("run", "--", "sh", "-c", "printf '\\377out'; printf '\\376err' >&2")
    assert (done.stdout, done.stderr) == (b"\xffout", b"\xfeerr")


def test_output_comes_when_it_is_written(atoll: Atoll) -> None:
    process = atoll.start("run", "--", "sh", "-c", "echo first; read x; echo $x", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"first\n"
    process.stdin.write(b"second\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"second\n"
    assert process.wait(10) == 0


@pytest.mark.parametrize("kind", ["null", "empty", "file", "closed"])
def test_kinds_of_stdin(atoll: Atoll, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in"
    path.write_bytes(MEBIBYTE if kind == "file" else b"")
    with path.open("rb") as file:
        stdin = file if kind in {"file", "empty"} else subprocess.DEVNULL
        command = atoll.command("run", "--", "cat")
        if kind == "closed":
            command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
        done = subprocess.run(command, stdin=stdin, capture_output=True, env=atoll.env, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (MEBIBYTE if kind == "file" else b"")


def test_a_command_that_ignores_its_stdin_ends_all_the_same(atoll: Atoll) -> None:
    assert atoll("run", "--", "true", stdin=MEBIBYTE * 4).returncode == 0


def test_a_reader_that_leaves_ends_it_quietly(atoll: Atoll) -> None:
    process = atoll.start("run", "--", "yes")
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(10) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_a_slow_reader_delays_no_timeout(atoll: Atoll) -> None:
    began = time.monotonic()
    process = atoll.start("run", "--timeout", "500ms", "--", "yes")
    assert process.wait(10) == 124  # though nobody read what it wrote
    assert time.monotonic() - began < 5
    assert process.stdout is not None
    assert process.stdout.read(4) == b"y\ny\n"


def test_a_full_device_is_named(atoll: Atoll) -> None:
    with open("/dev/full", "wb") as full:
        process = atoll.start("run", "--", "yes", stdout=full)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (125, b"atoll: stdout cannot be written: No space left on device\n")


def test_json_to_a_reader_that_left(atoll: Atoll) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = atoll.start("run", "--json", "--", "true", stdout=writer)
    os.close(writer)
    assert process.wait(10) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_appending_to_a_file_both_streams(atoll: Atoll, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    with path.open("ab") as log:
        process = atoll.start("run", "--", "sh", "-c", "echo out; echo err >&2", stdout=log, stderr=log)
        assert process.wait(10) == 0
    assert sorted(path.read_bytes().splitlines()) == [b"before", b"err", b"out"]
