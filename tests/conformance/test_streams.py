"""C07 Output is bytes, and it streams: in order, while the command runs, no faster than the reader takes it."""

import asyncio
import hashlib
import threading
import time

import pytest

from atoll import AsyncSandbox, Sandbox

TEXT = "a" * 65535 + "é漢\U0001f600" * 40000
PRINT_TEXT = "import sys; sys.stdout.buffer.write(b'a'*65535+'\\u00e9\\u6f22\\U0001f600'.encode()*40000)"
RAW = b"ok\xff\xfe\x00end\r\n"
PRINT_RAW = "printf 'ok\\377\\376\\000end\\r\\n'"
MANY = 50_000_000
WAITING_MAX = 8 << 20
"""Bytes that may be under way to a reader that has stopped: the window, the pipes, some reads."""


def test_c07_multi_byte_text_is_whole_in_both_views(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["python3", "-c", PRINT_TEXT])
    assert result.stdout_bytes == TEXT.encode()
    assert result.stdout == TEXT
    assert "\ufffd" not in result.stdout


def test_c07_the_digest_equals_that_computed_inside(sandbox: Sandbox) -> None:
    inside = sandbox.commands.run(["sh", "-c", 'python3 -c "$0" | sha256sum', PRINT_TEXT]).stdout.split()[0]
    outside = sandbox.commands.run(["python3", "-c", PRINT_TEXT]).stdout_bytes
    assert hashlib.sha256(outside).hexdigest() == inside


def test_c07_invalid_bytes_are_exact_as_bytes_and_replaced_as_text(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(PRINT_RAW)
    assert result.stdout_bytes == RAW
    assert result.stdout == "ok\ufffd\ufffd\0end\r\n"
    assert result.exit_code == 0


def test_c07_streamed_text_splits_no_character(sandbox: Sandbox) -> None:
    pieces: list[str] = []
    sandbox.commands.run(["python3", "-c", PRINT_TEXT], on_stdout=pieces.append)
    assert "".join(pieces) == TEXT


def test_c07_streamed_bytes_are_exact(sandbox: Sandbox) -> None:
    pieces: list[bytes] = []
    texts: list[str] = []
    sandbox.commands.run(PRINT_RAW, on_stdout_bytes=pieces.append, on_stdout=texts.append)
    assert b"".join(pieces) == RAW
    assert "".join(texts) == "ok\ufffd\ufffd\0end\r\n"


def test_c07_a_character_written_in_two_pieces_arrives_whole(sandbox: Sandbox) -> None:
    pieces: list[str] = []
    result = sandbox.commands.run("printf '\\303'; sleep 0.2; printf '\\251'", on_stdout=pieces.append)
    assert "".join(pieces) == result.stdout == "é"


def test_c07_streamed_text_says_as_much_as_the_result(sandbox: Sandbox) -> None:
    pieces: list[str] = []
    result = sandbox.commands.run("printf 'cut\\303'", on_stdout=pieces.append)
    assert "".join(pieces) == result.stdout == "cut\ufffd"


@pytest.mark.anyio
async def test_c07_async_text_and_bytes_are_exact(level: str) -> None:
    texts: list[str] = []
    pieces: list[bytes] = []
    async with await AsyncSandbox.create(level=level) as sandbox:
        result = await sandbox.commands.run(["python3", "-c", PRINT_TEXT], on_stdout=texts.append)
        raw = await sandbox.commands.run(PRINT_RAW, on_stdout_bytes=pieces.append)
    assert "".join(texts) == result.stdout == TEXT
    assert b"".join(pieces) == raw.stdout_bytes == RAW


def test_output_arrives_while_the_command_runs(sandbox: Sandbox) -> None:
    times: list[tuple[str, float]] = []
    began = time.monotonic()
    sandbox.commands.run(
        "echo first; sleep 1; echo second", on_stdout=lambda text: times.append((text, time.monotonic() - began))
    )
    assert [text for text, _ in times] == ["first\n", "second\n"]
    assert times[0][1] < times[1][1] - 0.5


def test_stdout_and_stderr_are_kept_apart(sandbox: Sandbox) -> None:
    out: list[bytes] = []
    err: list[bytes] = []
    sandbox.commands.run(
        "for i in $(seq 300); do echo o$i; echo e$i >&2; done", on_stdout_bytes=out.append, on_stderr_bytes=err.append
    )
    assert b"".join(out).split() == [b"o%d" % number for number in range(1, 301)]
    assert b"".join(err).split() == [b"e%d" % number for number in range(1, 301)]


def test_both_streams_flooded_at_once_lose_nothing(sandbox: Sandbox) -> None:
    out = err = 0

    def count_out(data: bytes) -> None:
        nonlocal out
        out += len(data)

    def count_err(data: bytes) -> None:
        nonlocal err
        err += len(data)

    result = sandbox.commands.run(
        "head -c 5000000 /dev/zero & head -c 5000000 /dev/zero >&2; wait",
        on_stdout_bytes=count_out,
        on_stderr_bytes=count_err,
    )
    assert (out, err, result.exit_code) == (5_000_000, 5_000_000, 0)


def test_single_bytes_arrive_in_order(sandbox: Sandbox) -> None:
    pieces: list[bytes] = []
    code = "import os\nfor i in range(20000): os.write(1, b'%c' % (i % 251))"
    sandbox.commands.run(["python3", "-c", code], on_stdout_bytes=pieces.append)
    assert b"".join(pieces) == bytes(number % 251 for number in range(20000))


def test_output_of_simultaneous_commands_does_not_mix(sandbox: Sandbox) -> None:
    found: dict[str, str] = {}

    def command(letter: str) -> None:
        pieces: list[str] = []
        sandbox.commands.run(["sh", "-c", f"head -c 300000 /dev/zero | tr '\\0' {letter}"], on_stdout=pieces.append)
        found[letter] = "".join(pieces)

    threads = [threading.Thread(target=command, args=(letter,)) for letter in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {letter: letter * 300_000 for letter in "abcdefgh"}


def test_a_failing_callback_ends_the_command_with_a_true_reason(sandbox: Sandbox) -> None:
    def callback(_text: str) -> None:
        raise ValueError("no more, please")

    began = time.monotonic()
    result = sandbox.commands.run("echo x; sleep 20", on_stdout=callback)
    assert result.reason == "killed"
    assert "callback failed: no more, please" in result.detail
    assert time.monotonic() - began < 5
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_c08_a_slow_reader_gets_all_50_mb_through_back_pressure(sandbox: Sandbox) -> None:
    digest, size, progress = hashlib.sha256(), 0, ""

    def slow(data: bytes) -> None:
        nonlocal size, progress
        size += len(data)
        digest.update(data)
        if not progress:
            time.sleep(0.7)
            progress = sandbox.commands.run("cat /tmp/progress || echo 0").stdout
        time.sleep(0.002)

    code = (
        "import sys\n"
        "for i in range(50):\n"
        "    sys.stdout.buffer.write(bytes([i]) * 1000000); sys.stdout.flush()\n"
        "    open('/tmp/progress', 'w').write(str(i + 1))"
    )
    result = sandbox.commands.run(["python3", "-c", code], on_stdout_bytes=slow)
    assert size == MANY
    assert digest.digest() == hashlib.sha256(b"".join(bytes([i]) * 1_000_000 for i in range(50))).digest()
    assert result.exit_code == 0
    # The reader's pause stopped the writer itself, nothing in between filled up instead.
    assert int(progress) * 1_000_000 < WAITING_MAX


@pytest.mark.anyio
async def test_c08_a_slow_async_reader_gets_all_50_mb_and_delays_nobody_else(level: str) -> None:
    size = calls = 0
    async with await AsyncSandbox.create(level=level) as sandbox:
        reading = asyncio.Event()

        async def slow(data: bytes) -> None:
            nonlocal size, calls
            size += len(data)
            calls += 1
            reading.set()
            await asyncio.sleep(1.0 if calls == 1 else 0.001)

        flood = asyncio.create_task(
            sandbox.commands.run(["head", "-c", str(MANY), "/dev/zero"], on_stdout_bytes=slow, timeout=60)
        )
        await reading.wait()
        began = time.monotonic()
        other = await sandbox.commands.run(["echo", "meanwhile"])
        assert other.stdout == "meanwhile\n"
        assert time.monotonic() - began < 0.9
        result = await flood
    assert size == MANY
    assert result.exit_code == 0
