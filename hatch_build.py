"""Build hook: compiles the C parts of Atoll into ``src/atoll/_bin`` before a wheel or an editable install is made.

``agent/*.c`` becomes ``atoll-agent`` (runs inside the sandbox, so it must be static: it may meet any libc or none) and
``launcher/*.c`` becomes ``atoll-launch``. gcc or cc is used when it can link statically, else the ``ziglang`` wheel,
which is asked for as a build dependency only then. Hatchling calls this; ``./dev setup`` runs it as a script, because
only C sources may have changed. It must not import atoll, which is not installed yet.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
OUTPUT = ROOT / "src" / "atoll" / "_bin"
PROGRAMS = {"atoll-agent": ROOT / "agent", "atoll-launch": ROOT / "launcher"}
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Os", "-static", "-s", "-Wall", "-Wextra"]
ZIG = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl"]


class BuildError(Exception):
    """The C parts cannot be built here; the text says what to install."""


def host_compiler() -> list[str] | None:
    """The command of a C compiler on PATH that links static programs (a compiler without libc.a does not)."""
    for name in ("gcc", "cc"):
        if (path := shutil.which(name)) is None:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            probe = Path(scratch, "probe.c")
            probe.write_text('#include <stdio.h>\nint main(void) { return puts("ok") < 0; }\n')
            command = [path, *FLAGS, "-o", str(probe.with_suffix("")), str(probe)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return [path]
    return None


def compiler() -> list[str]:
    """The compiler command to use.

    Raises:
        BuildError: neither a working host compiler nor ziglang is there.
    """
    if (found := host_compiler()) is not None:
        return found
    if importlib.util.find_spec("ziglang") is not None:
        return ZIG
    raise BuildError(
        "Atoll's sandbox agent is written in C and no compiler here can link a static program. "
        "Install one (Debian, Ubuntu: `apt-get install gcc libc6-dev`; Fedora: `dnf install gcc glibc-static`) "
        "or the ziglang wheel (`pip install ziglang`), then try again."
    )


def sources(directory: Path) -> list[Path]:
    """The C files and headers of one program, in a stable order."""
    return sorted(path for pattern in ("*.c", "*.h") for path in directory.glob(pattern))


def fingerprint() -> str:
    """A hash over the flags and everything that is compiled: content, not times, so a fresh clone does not matter."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for directory in PROGRAMS.values():
        for path in sources(directory):
            digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def build() -> bool:
    """Compiles what is out of date; returns whether anything was compiled.

    Raises:
        BuildError: wrong machine, missing sources, no compiler, or the compiler's own errors.
    """
    if (machine := platform.machine()) not in {"x86_64", "AMD64"} or sys.platform != "linux":
        raise BuildError(f"Atoll supports Linux on x86-64 only for now; this is {sys.platform} on {machine}.")
    stamp, current = OUTPUT / ".sources", fingerprint()
    if stamp.is_file() and stamp.read_text() == current and all((OUTPUT / name).is_file() for name in PROGRAMS):
        return False
    command = compiler()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, directory in PROGRAMS.items():
        files = [str(path) for path in sources(directory) if path.suffix == ".c"]
        if not files:
            raise BuildError(f"no C sources in {directory}: the source tree is incomplete.")
        fresh = OUTPUT / f".{name}.{os.getpid()}"  # renamed into place, so that a running copy is never written to
        line = [*command, *FLAGS, "-o", str(fresh), *files]
        result = subprocess.run(line, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            fresh.unlink(missing_ok=True)
            raise BuildError(f"compiling {name} with {command[0]} failed:\n{result.stderr}")
        sys.stderr.write(result.stderr)
        fresh.chmod(0o755)
        fresh.replace(OUTPUT / name)
    stamp.write_text(current)
    return True


class CustomBuildHook(BuildHookInterface[Any]):
    """Hatchling's entry point; used for wheels, standard and editable."""

    def dependencies(self) -> list[str]:
        """Asks for ziglang exactly when the host cannot compile."""
        return [] if host_compiler() else ["ziglang>=0.13,<1"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compiles, and marks the wheel as bound to the platform but to no Python version."""
        try:
            build()
        except BuildError as error:
            sys.exit(f"error: {error}")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"


if __name__ == "__main__":
    try:
        print("compiled" if build() else "up to date")
    except BuildError as error:
        sys.exit(f"error: {error}")
