"""Fails when a source file is longer than a reader can hold in mind, and prints the median. Run by ``./dev check``."""

import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 500
SUFFIXES = (".py", ".c", ".h")


def main() -> int:
    """Looks at every file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (Path(name) for name in listed.stdout.split("\0") if name.endswith(SUFFIXES))
    lengths = {path: len(path.read_text().splitlines()) for path in paths if path.is_file()}
    too_long = {path: length for path, length in lengths.items() if length > LIMIT}
    for path, length in sorted(too_long.items()):
        print(f"{path}: {length} lines, at most {LIMIT} allowed")
    median, longest = statistics.median(lengths.values()), max(lengths.values())
    print(f"{len(lengths)} files, median {median:.0f} lines, longest {longest}")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
