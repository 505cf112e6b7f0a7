"""Gets the test machine's kernel, its modules and a static busybox from Debian's archive, once, into ``build/vm``.

The package is unpacked, not installed, so this works as any user. ``linux-image-amd64`` is taken instead of the smaller
``linux-image-cloud-amd64`` because only the former has the 9p file system, with which the machine sees the host's tree.
Called by machine.py.
"""

import lzma
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / "build" / "vm"
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "9pnet_virtio", "9p", "overlay", "crc32c_generic", "ext4")


class VmUnavailableError(Exception):
    """No test machine can be made here; the text says why."""


@dataclass(frozen=True)
class Kernel:
    """Unpacked parts; ``modules`` are in an order in which each may be loaded."""

    image: Path
    busybox: Path
    modules: list[Path]


def fetch(package: str = "linux-image-amd64") -> Kernel:
    """The kernel that ``package`` (a Debian meta package) stands for, from the cache where it is there.

    Raises:
        VmUnavailableError: not a Debian host, or the archive cannot be reached.
    """
    directory = CACHE / f"{package}-{zlib.crc32(repr(MODULES).encode()):08x}"
    if not directory.is_dir():
        if missing := [tool for tool in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(tool) is None]:
            raise VmUnavailableError(f"no {missing[0]} here to get a Debian kernel with")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            unpacked = Path(scratch, "unpacked")
            for deb in _download(package, Path(scratch)):
                _run("dpkg-deb", "-x", str(deb), str(unpacked))
            _collect(unpacked, Path(scratch, "parts")).rename(directory)
    modules = sorted((directory / "modules").iterdir())
    return Kernel(directory / "vmlinuz", directory / "busybox", modules)


def _download(package: str, directory: Path) -> list[Path]:
    directory.chmod(0o755)  # apt downloads as its own user
    for last_try in (False, True):
        try:
            if (real := re.search(r"Depends: (linux-image-\d\S+)", _run("apt-cache", "depends", package))) is None:
                raise VmUnavailableError(f"{package} names no kernel")
            _run("apt-get", "-q", "download", real[1], "busybox-static", cwd=directory)
            return list(directory.glob("*.deb"))
        except VmUnavailableError:
            if last_try or os.geteuid() != 0:
                raise
            _run("apt-get", "-q", "update")  # no or stale package lists, the usual cause
    raise AssertionError


def _collect(unpacked: Path, parts: Path) -> Path:
    (parts / "modules").mkdir(parents=True)
    shutil.move(next(unpacked.glob("boot/vmlinuz-*")), parts / "vmlinuz")
    shutil.move(next(unpacked.glob("**/bin/busybox")), parts / "busybox")
    known = {path.name.split(".")[0].replace("-", "_"): path for path in unpacked.glob("**/*.ko*")}
    for number, name in enumerate(_load_order(known)):
        data = _module(known[name])
        (parts / "modules" / f"{number:02}-{name}.ko").write_bytes(data)
    return parts


def _load_order(known: dict[str, Path]) -> list[str]:
    """Depth first over what each module says it depends on (the package has no modules.dep, depmod makes that)."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order or name not in known:  # not known: built into this kernel
            return
        found = re.search(rb"\0depends=([^\0]*)\0", _module(known[name]))
        for needed in filter(None, (found[1] if found else b"").decode().split(",")):
            visit(needed.replace("-", "_"))
        order.append(name)

    for name in MODULES:
        visit(name)
    return order


def _module(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


def _run(*command: str, cwd: Path | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise VmUnavailableError(f"{' '.join(command)}: {result.stderr.strip()[-300:]}")
    return result.stdout
