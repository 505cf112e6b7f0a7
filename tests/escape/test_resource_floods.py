"""Threat: inotify, pipes, locks, deep trees, a million files wear the host out. Wall: limits per sandbox; quick teardown."""

import time

import pytest

from tests.sandboxes import Make

FLOODS = {
    "deep tree": "import os\nos.chdir('/tmp')\nn = 0\ntry:\n while True: os.mkdir('d'); os.chdir('d'); n += 1\nexcept OSError as e: print(n, e.errno)",
    "many files": "n = 0\ntry:\n while True: open(f'/tmp/{n}', 'w').close(); n += 1\nexcept OSError as e: print(n, e.errno)",
    "inotify": "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True); n = 0\nwhile c.inotify_init() >= 0: n += 1\nprint(n, ctypes.get_errno())",
    "pipes": "import os\nn = 0\ntry:\n while True: os.pipe(); n += 1\nexcept OSError as e: print(n, e.errno)",
    "locks": "import fcntl, os\nf = open('/tmp/l', 'w'); n = 0\ntry:\n for n in range(10_000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * n)\nexcept OSError as e: pass\nprint(n, 0)",
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_inside_and_teardown_is_quick(make: Make, name: str) -> None:
    sandbox = make(memory="128M")
    result = sandbox.commands.run(["/usr/bin/python3", "-c", FLOODS[name]], timeout=60, user="root")
    assert result.exit_code in {0, 137}, result.stderr
    if result.exit_code == 0:
        assert int(result.stdout.split()[0]) > 50
    assert sandbox.commands.run(["/bin/echo", "alive"]).stdout == "alive\n"
    began = time.monotonic()
    sandbox.kill()
    assert time.monotonic() - began < 10
