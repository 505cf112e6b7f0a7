"""One line on a terminal's stderr while something takes more than a second."""

import contextlib
import os
import threading
from collections.abc import Iterator

from atoll.cli.output import STDERR

AFTER_S = 1.0


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """Show `text` with a spinner and the time while the block lasts, from `AFTER_S` on; nothing without a terminal."""
    if not _is_terminal():
        yield
        return
    line = _Line(text)
    timer = threading.Timer(AFTER_S, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.close()


def _is_terminal() -> bool:
    try:
        return os.isatty(STDERR)
    except OSError:
        return False


class _Line:
    """The line; shown from the timer's thread, closed from the caller's."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._closed = False
        self._stack = contextlib.ExitStack()

    def show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        with self._lock:
            if not self._closed:
                bar.add_task(self._text)
                self._stack.enter_context(bar)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stack.close()
