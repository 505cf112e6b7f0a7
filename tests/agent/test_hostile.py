"""A host that breaks the protocol, and guests that exhaust what there is."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.peer import BIG_WINDOW, Command, Kind, frame, start_payload
from tests.agent.test_end import eventually, processes_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.conftest import Launch
    from tests.agent.rig import Rig

CONFINED = frame(Kind.CONFINED)
TRUE = start_payload([b"true"])
SLEEP = frame(Kind.START, 1, start_payload([b"sleep", b"27182.8"], stdin=True))


def start(payload: bytes, stream: int = 1) -> bytes:
    return CONFINED + frame(Kind.START, stream, payload)


VIOLATIONS = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "zeroes": bytes(64),
    "frame of 4 GiB": frame(Kind.DATA, 1, length=2**32 - 1),
    "frame just too long": frame(Kind.START, 1, length=(1 << 20) + 1),
    "kind 0": frame(0),
    "kind of the agent": frame(Kind.HELLO, 0, bytes(9)),
    "kind 14": frame(14),
    "kind 255": frame(255),
    "START before CONFINED": frame(Kind.START, 1, TRUE),
    "CONFINED twice": CONFINED * 2,
    "CONFINED with a payload": frame(Kind.CONFINED, 0, b"x"),
    "CONFINED on a stream": frame(Kind.CONFINED, 1),
    "PING too short": frame(Kind.PING, 0, b"1234567"),
    "START on stream 0": start(TRUE, 0),
    "START of a live stream": CONFINED + SLEEP * 2,
    "START too short": start(TRUE[:16]),
    "START cut in a string": start(start_payload([b"true"], env=[b"A=1"])[:-1]),
    "START cut in a count": start(TRUE[:22]),
    "START with trailing bytes": start(TRUE + b"\0"),
    "START without argv": start(start_payload([])),
    "START with argc of 4 Gi": start(TRUE[:17] + b"\0/\0" + b"\xff" * 4 + b"a\0" * 1000),
    "START with reserved flags": start(start_payload([b"true"], flags=2)),
    "leaf ../x": start(start_payload([b"true"], leaf=b"../x")),
    "leaf .": start(start_payload([b"true"], leaf=b".")),
    "leaf X": start(start_payload([b"true"], leaf=b"X")),
    "leaf of 33": start(start_payload([b"true"], leaf=b"x" * 33)),
    "DATA for fd 1": CONFINED + SLEEP + frame(Kind.DATA, 1, b"\1x"),
    "DATA without fd": CONFINED + SLEEP + frame(Kind.DATA, 1),
    "DATA too long": CONFINED + SLEEP + frame(Kind.DATA, 1, bytes(65538)),
    "DATA beyond the credit": CONFINED + SLEEP + frame(Kind.DATA, 1, bytes(65537)) * 3,
    "DATA after EOF": CONFINED + SLEEP + frame(Kind.EOF, 1, b"\0") + frame(Kind.DATA, 1, b"\0x"),
    "EOF for fd 2": CONFINED + SLEEP + frame(Kind.EOF, 1, b"\2"),
    "CREDIT for fd 0": CONFINED + SLEEP + frame(Kind.CREDIT, 1, struct.pack("<BI", 0, 1)),
    "CREDIT for fd 3": CONFINED + SLEEP + frame(Kind.CREDIT, 1, struct.pack("<BI", 3, 1)),
    "signal 0": CONFINED + SLEEP + frame(Kind.SIGNAL, 1, b"\0\0"),
    "signal 65": CONFINED + SLEEP + frame(Kind.SIGNAL, 1, b"\x41\0"),
    "scope 3": CONFINED + SLEEP + frame(Kind.SIGNAL, 1, b"\x09\3"),
    "TERM to a tree": CONFINED + SLEEP + frame(Kind.SIGNAL, 1, b"\x0f\2"),
}


@pytest.mark.parametrize("violation", VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_protocol_error_ends_the_agent_and_what_it_started(launch: Launch, violation: bytes) -> None:
    rig = launch()
    rig.peer.commands[1] = Command(1, BIG_WINDOW, auto_credit=False, stdin_credit=-(1 << 30))
    rig.peer.outgoing += violation
    rig.until(lambda: not rig.peer.outgoing or rig.closed)
    code, text = rig.ending()
    assert code == 1
    assert text.startswith(b"atoll-agent: protocol error: ")
    assert text.count(b"\n") == 1
    assert text.endswith(b"\n")
    assert eventually(lambda: not processes_named("27182.8"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense", "1"],
        ["--seccomp"],
        ["--seccomp", "77"],
        ["--seccomp", "1"],
        ["--cgroup1", "-1"],
        ["--cgroup2", "9999999999999999999999"],
        ["--keep-caps", "xyz"],
        ["extra"],
    ],
)
def test_command_line_that_is_wrong(launch: Launch, arguments: list[str]) -> None:
    code, text = launch(*arguments).ending()
    assert code == 2
    assert text.startswith(b"atoll-agent: ")
    assert text.count(b"\n") == 1


def test_frames_may_arrive_byte_by_byte(launch: Launch) -> None:
    rig = launch()
    for byte in CONFINED + frame(Kind.PING, 0, b"abcdefgh"):
        rig.peer.outgoing.append(byte)
        rig.turn(0.01)
    rig.until(lambda: rig.peer.pongs == [b"abcdefgh"])


def test_largest_start(rig: Rig) -> None:
    room = (1 << 20) - len(start_payload([b"true"], env=[b""] * 9))
    command = rig.finish(rig.peer.start("true", env=[b"A" * (room // 9)] * 9))
    assert command.status == 0
    assert rig.finish(rig.peer.start("true", env=[b""] * 900_000)).error is not None  # E2BIG, not a crash


def test_more_streams_than_there_are_slots(rig: Rig, flavour: str) -> None:
    if flavour != "shipped":
        pytest.skip("a thousand forks of a sanitized process take long")
    commands = [rig.peer.start("sleep", "100") for _ in range(1024)]
    rig.until(lambda: all(command.pid for command in commands), 30)
    assert rig.finish(rig.peer.start("true")).error == (1, errno.EAGAIN, "Resource temporarily unavailable")
    rig.peer.signal(commands[500], 9, 0)
    rig.finish(commands[500])
    assert rig.finish(rig.peer.start("true")).status == 0


def test_no_fds_left(launch: Launch) -> None:
    rig = launch(prefix=["prlimit", "--nofile=20:20"]).ready()
    commands = [rig.peer.start("sleep", "100") for _ in range(8)]
    rig.until(lambda: all(command.pid or command.error for command in commands))
    refused = [command for command in commands if command.error]
    assert refused
    assert {command.error[:2] for command in refused if command.error} == {(1, errno.EMFILE)}
    for command in commands:
        rig.peer.signal(command, 9, 0)
        rig.finish(command)
    assert rig.finish(rig.peer.shell("echo fine")).stdout == b"fine\n"


@pytest.fixture
def pids_cgroup() -> Iterator[Path]:
    """A cgroup v1 of our own that can limit the number of processes."""
    cgroup = Path(f"/sys/fs/cgroup/pids/atoll-test-{os.getpid()}")
    if os.geteuid() != 0 or not cgroup.parent.is_dir():
        pytest.skip("no cgroup v1 pids hierarchy that we may write to")
    cgroup.mkdir()
    yield cgroup
    assert eventually(lambda: not (cgroup / "cgroup.procs").read_text())
    cgroup.rmdir()


def test_no_processes_left(launch: Launch, pids_cgroup: Path) -> None:
    rig = launch().ready()
    (pids_cgroup / "cgroup.procs").write_text(str(rig.pid))
    (pids_cgroup / "pids.max").write_text("2")
    holder = rig.peer.start("sleep", "100")
    refused = rig.finish(rig.peer.start("true"))
    assert refused.error == (1, errno.EAGAIN, "Resource temporarily unavailable")
    rig.peer.signal(holder, 9, 0)
    rig.finish(holder)
    assert rig.finish(rig.peer.start("true")).status == 0
    rig.close()
