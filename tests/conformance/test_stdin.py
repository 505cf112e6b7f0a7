"""Standard input: empty by default, exact, lazy, and never a reason to hang."""

import hashlib
import queue
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from atoll import AsyncSandbox, Sandbox
from atoll.model.errors import InvalidSpecError

BIG = bytes(range(256)) * 80_000
"""20 MB in which every place is different enough."""


def test_stdin_is_empty_by_default(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("cat; readlink /proc/self/fd/0", timeout=5)
    assert (result.stdout, result.exit_code) == ("/dev/null\n", 0)


@pytest.mark.parametrize("data", ["", "text é\n", b"\x00\xff\r\n\x04\x1a", "\udcff"])
def test_stdin_arrives_exactly(sandbox: Sandbox, data: str | bytes) -> None:
    wanted = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    assert sandbox.commands.run(["cat"], stdin=data, timeout=5).stdout_bytes == wanted


def test_20_mb_in_arrive_whole(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["sha256sum"], stdin=BIG, timeout=30)
    assert result.stdout.split()[0] == hashlib.sha256(BIG).hexdigest()


def test_20_mb_in_and_out_at_once_do_not_lock_up(sandbox: Sandbox) -> None:
    digest = hashlib.sha256()
    result = sandbox.commands.run(["cat"], stdin=BIG, on_stdout_bytes=digest.update, timeout=30)
    assert digest.digest() == hashlib.sha256(BIG).digest()
    assert result.exit_code == 0


def test_an_iterable_is_read_lazily_and_in_order(sandbox: Sandbox) -> None:
    taken = 0

    def chunks() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"%d\n" % taken + bytes(10_000)

    result = sandbox.commands.run(["head", "-n", "3"], stdin=chunks(), timeout=10)
    assert [line.strip("\0") for line in result.stdout.split("\n")[:3]] == ["1", "2", "3"]
    assert taken < 100


def test_empty_chunks_do_not_end_it(sandbox: Sandbox) -> None:
    assert sandbox.commands.run(["cat"], stdin=[b"a", b"", b"b", b""], timeout=5).stdout == "ab"


def test_a_dialogue_is_possible(sandbox: Sandbox) -> None:
    answers: queue.Queue[bytes] = queue.Queue()

    def talk() -> Iterator[bytes]:
        yield b"2\n"
        for _ in range(5):
            yield answers.get(timeout=5)

    code = "import sys\nfor line in sys.stdin: print(int(line) * 2, flush=True)"
    result = sandbox.commands.run(["python3", "-c", code], stdin=talk(), on_stdout_bytes=answers.put, timeout=10)
    assert result.stdout.split() == ["4", "8", "16", "32", "64", "128"]


@pytest.mark.anyio
async def test_an_asynchronous_iterable_feeds_a_command(level: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    async with await AsyncSandbox.create(level=level) as sandbox:
        result = await sandbox.commands.run(["cat"], stdin=chunks(), timeout=5)
    assert result.stdout == "012"


@pytest.mark.parametrize("command", [["true"], ["sh", "-c", "exec <&-; sleep 0.3"], ["head", "-c", "10"]])
def test_input_that_nobody_reads_delays_nothing(sandbox: Sandbox, command: list[str]) -> None:
    began = time.monotonic()
    result = sandbox.commands.run(command, stdin=BIG, timeout=20)
    assert (result.exit_code, result.reason) == (0, "exited")
    assert time.monotonic() - began < 3


def test_input_that_never_ends_does_not_outlive_the_timeout(sandbox: Sandbox) -> None:
    def chunks() -> Iterator[bytes]:
        while True:
            yield bytes(100_000)

    began = time.monotonic()
    result = sandbox.commands.run(["sleep", "30"], stdin=chunks(), timeout=1)
    assert result.reason == "timeout"
    assert time.monotonic() - began < 2


def test_half_of_an_input_is_never_taken_for_all_of_it(sandbox: Sandbox) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"delete everything except "
        raise OSError("the disk broke")

    result = sandbox.commands.run("sleep 0.5; cat; sleep 20", stdin=chunks(), timeout=10)
    assert result.reason == "killed"
    assert "stdin failed: the disk broke" in result.detail


@pytest.mark.parametrize("stdin", [5, 0.5, True], ids=str)
def test_stdin_of_a_wrong_type_is_a_typed_error(sandbox: Sandbox, stdin: object) -> None:
    with pytest.raises(InvalidSpecError, match="stdin: not text, bytes or an iterable of bytes, got"):
        sandbox.commands.run(["cat"], stdin=stdin, timeout=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", ["text", 5], ids=str)
def test_a_chunk_of_a_wrong_type_ends_the_command(sandbox: Sandbox, chunk: object) -> None:
    result = sandbox.commands.run(["cat"], stdin=[b"good", chunk], timeout=5)  # type: ignore[list-item]
    assert result.reason == "killed"
    assert "stdin failed" in result.detail
