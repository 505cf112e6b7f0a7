"""What the program inherits, when it dies, and how it is found."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.launcher.conftest import Factory
from tests.launcher.rig import BASE, ENVIRONMENT, RANGE, Launch, processes


def numbers(launch: Launch) -> list[int]:
    """The fds that the program has, without the one by which ls reads the directory: the lowest free number."""
    listed = {int(name) for name in launch.sh("ls /proc/self/fd").lines}
    return sorted(listed - {next(n for n in range(3, 999) if n not in launch_keeps(launch))})


def launch_keeps(launch: Launch) -> set[int]:
    return {int(launch.words[i + 2]) for i, word in enumerate(launch.words) if word == "keep"}


def test_nothing_but_stdio_is_inherited(either: Factory, scratch: Path) -> None:
    launch = either().staged()
    for name in ("a", "b", "c"):
        launch.op("tree", launch.fd("/usr"), f"root/{name}", "ro")
    launch.userns()
    launch.fd("/etc/passwd", os.O_RDONLY)
    launch.text_fd("never named by an op")
    assert numbers(launch) == [0, 1, 2]


def test_kept_fds_have_the_numbers_asked_for(either: Factory, scratch: Path) -> None:
    for text in ("one", "two"):
        (scratch / text).write_text(text)

    def swapped() -> tuple[Launch, int, int]:
        launch = either().staged().userns()
        first, second = (int(launch.fd(scratch / text, os.O_RDONLY)) for text in ("one", "two"))
        launch.op("keep", first, second, "keep", second, first, "keep", first, 255)
        return launch, first, second

    launch, first, second = swapped()
    assert launch.sh(f"cat /dev/fd/{second} /dev/fd/{first} /dev/fd/255").text == "onetwoone"
    launch, first, second = swapped()
    assert numbers(launch) == [0, 1, 2, *sorted([first, second]), 255]


MASK_077 = ("/bin/sh", "-c", 'umask 077; exec "$@"', "sh")


def test_signals_and_umask_are_a_new_programs(either: Factory) -> None:
    launch = either().staged().userns()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGRTMIN})
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGUSR1)}
    try:
        process = launch.start("/bin/sh", "-c", "umask; exec grep -E 'Sig(Blk|Ign)' /proc/self/status", before=MASK_077)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    out, _ = process.communicate(timeout=9)
    assert out.decode().split() == ["0022", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16]


def test_only_the_given_processors(root: Factory) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    result = root().op("cpus", str(allowed[-1]), "userns", BASE, RANGE).sh("grep Cpus_allowed_list /proc/self/status")
    assert result.text.split()[1] == str(allowed[-1])
    listed = ",".join(map(str, allowed))
    assert root().op("cpus", listed, "userns", BASE, RANGE).sh("nproc").text == f"{len(allowed)}\n"
    assert root().op("cpus", "8191", "userns", BASE, RANGE).refused() == "cpus 8191: Invalid argument"


def test_a_program_that_cannot_be_executed(root: Factory, scratch: Path) -> None:
    for path, error in {"/no/such": "No such file or directory", str(scratch): "Permission denied"}.items():
        assert root().op("userns", BASE, RANGE).refused(path) == f"exec {path}: {error}"


def test_a_program_by_fd_that_the_uid_cannot_reach(root: Factory, probe: Path, scratch: Path) -> None:
    private = scratch / "private"
    private.mkdir(mode=0o700)
    program = str(shutil.copy(probe, private))
    assert root().staged().userns().refused(program, "hello").endswith("Permission denied")
    launch = root().staged().userns()
    assert launch.run(f"fd:{launch.fd(program)}", "hello").text == "ok\n"


def test_a_program_below_the_stage_by_fd(rootless: Factory, probe: Path, scratch: Path) -> None:
    program = str(shutil.copy(probe, scratch / "stage"))
    assert rootless().staged().refused(program, "hello").endswith("No such file or directory")
    launch = rootless().staged()
    fd = launch.fd(program)
    launch.op("keep", launch.text_fd("in the way"), fd)
    assert launch.run(f"fd:{fd}", "hello").text == "ok\n"


def test_arguments_and_environment_arrive_as_they_are(root: Factory) -> None:
    odd = [b"-n", b"a\nb", b"", b"\xff\xfe", b"--", b"%s:,+="]
    result = root().op("userns", BASE, RANGE).run("/usr/bin/printf", "%s|", *odd)
    assert result.out == b"".join(word + b"|" for word in odd)
    result = root().op("userns", BASE, RANGE).run("/usr/bin/env")
    assert dict(line.split("=", 1) for line in result.lines) == ENVIRONMENT


def parent_that_waits(launch: Launch, *program: str) -> "subprocess.Popen[bytes]":
    """A shell that starts the launch as its child and says the child's pid."""
    return launch.start(*program, before=("/bin/sh", "-c", '"$@" & echo $! >&2; wait', "sh"))


def test_it_dies_with_its_parent(either: Factory) -> None:
    with parent_that_waits(either().staged().userns(), "/bin/sh", "-c", "echo up; exec sleep 30") as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert processes()
        parent.kill()
        assert parent.stdout.read() == b""


def test_it_does_not_start_when_its_parent_died_earlier(either: Factory) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    launch = either().staged().userns()
    launch.op("write", launch.adopt(writing), "the launcher waits here until the pipe is read")
    with parent_that_waits(launch, "/bin/echo", "started") as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        child = int(parent.stderr.readline())
        deadline = time.monotonic() + 5
        while not Path(f"/proc/{child}/syscall").read_text().startswith("1 "):  # write(2) on x86-64
            assert time.monotonic() < deadline
            time.sleep(0.01)
        parent.kill()
        parent.wait()
        os.read(reading, 1 << 20)
        assert parent.stdout.read() == b""
        assert parent.stderr.read() == b"atoll-launch: exec /bin/echo: the process that started this one is gone\n"
    os.close(reading)
