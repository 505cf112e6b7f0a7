"""A throw-away virtual machine with cgroup v2: boots a Debian kernel on the host's own tree and runs one command.

For code that a host with cgroup v1 cannot exercise. By hand, from the top of the repository:
``.venv/bin/python -m tests.vm.machine -- CMD``. The machine sees the host's files read-only over 9p, with a fresh
ext4 on /tmp and tmpfs on /run, /var/tmp and /var/lib; there is no network. Emulated in software (TCG), because a usable
/dev/kvm cannot be counted on: expect Python to run about 10 times slower. It is a test tool, not a sandbox.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.vm import initrd
from tests.vm.kernel import CACHE, Kernel, VmUnavailableError, fetch

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BOOT_LOG = CACHE / "boot.log"
QEMU = "qemu-system-x86_64"
HARDWARE = (
    "-M q35,sata=off,smbus=off,i8042=off,usb=off,hpet=off,graphics=off,vmport=off,smm=off "
    "-accel tcg,thread=multi -cpu max -smp 2 -m 1536 -nodefaults -no-user-config -display none -no-reboot"
)
DISK_BYTES = 1 << 30  # sparse; /tmp in the machine
KERNEL_ARGUMENTS = "console=ttyS0 loglevel=5 panic=-1 cgroup_no_v1=all mitigations=off random.trust_cpu=on"
ENVIRONMENT = {
    "PATH": f"{REPOSITORY}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    "ATOLL_TEST_VM": "1",
}


class Result(NamedTuple):
    """What the command did; ``exit_code`` is None when the machine ended without one (crash, or out of time)."""

    exit_code: int | None
    output: str


def boot(
    command: list[str],
    timeout_s: float = 180,
    *,
    package: str = "linux-image-amd64",
    on_output: Callable[[str], object] = lambda _line: None,
) -> Result:
    """Boots, runs ``command`` as root in the repository's directory, powers off.

    The kernel's own messages go to ``BOOT_LOG``. ``on_output`` gets every line as it comes.

    Raises:
        VmUnavailableError: QEMU or the kernel cannot be had here.
    """
    if shutil.which(QEMU) is None:
        raise VmUnavailableError(f"no {QEMU} here (Debian: apt-get install qemu-system-x86)")
    kernel = fetch(package)
    with tempfile.TemporaryDirectory(prefix="atoll-vm-") as scratch:
        image, code, disk = (Path(scratch, name) for name in ("initrd", "code", "disk"))
        image.write_bytes(_initrd(kernel, command))
        disk.touch()
        os.truncate(disk, DISK_BYTES)
        process = subprocess.Popen(
            [QEMU, *HARDWARE.split(), *_devices(kernel, image, code, disk)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        alarm = threading.Timer(timeout_s, process.kill)
        alarm.start()
        lines: list[str] = []
        try:
            for line in process.stdout or ():
                lines.append(line)
                on_output(line)
            process.wait()
        finally:
            alarm.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        answer = code.read_text().strip() if code.exists() else ""
    return Result(int(answer) if answer else None, "".join(lines))


def _shares() -> list[Path]:
    """Trees that the machine mounts at their own path again, because a tmpfs may lie over them."""
    python = Path(os.path.realpath(sys.base_prefix))
    return [REPOSITORY] if python == Path("/usr") else [python, REPOSITORY]


def _hidden() -> list[Path]:
    """The first directory above each share that only its owner may search: rootless tests could not pass it."""
    found = (
        next((parent for parent in reversed(share.parents) if not parent.stat().st_mode & 0o001), None)
        for share in _shares()
    )
    return sorted({path for path in found if path is not None})


def _devices(kernel: Kernel, image: Path, code: Path, disk: Path) -> list[str]:
    BOOT_LOG.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["-kernel", str(kernel.image), "-initrd", str(image), "-append", KERNEL_ARGUMENTS]
    arguments += ["-serial", f"file:{BOOT_LOG}", "-device", "virtio-serial-pci"]
    arguments += ["-chardev", "file,id=output,path=/dev/stdout", "-device", "virtserialport,chardev=output,name=output"]
    arguments += ["-chardev", f"file,id=code,path={code}", "-device", "virtserialport,chardev=code,name=code"]
    arguments += ["-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"]
    for tag, path in {"host": Path("/"), **{f"share{n}": path for n, path in enumerate(_shares())}}.items():
        options = f"local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap"
        arguments += ["-fsdev", options, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return arguments


def _initrd(kernel: Kernel, command: list[str]) -> bytes:
    script = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in ENVIRONMENT.items())
    script += f"cd {shlex.quote(str(REPOSITORY))} && exec {shlex.join(command)}\n"
    shares = "".join(f"share{number} {path}\n" for number, path in enumerate(_shares()))
    hidden = "".join(f"{path}\n" for path in _hidden())
    directories = ("bin", "dev", "etc", "etc/vm", "host", "modules", "proc")
    return initrd.archive(
        [
            *map(initrd.directory, directories),
            initrd.character_device("dev/console", 5, 1),
            initrd.file("init", (HERE / "init.sh").read_bytes(), 0o755),
            initrd.file("bin/busybox", kernel.busybox.read_bytes(), 0o755),
            *(initrd.file(f"modules/{path.name}", path.read_bytes()) for path in kernel.modules),
            initrd.file("etc/vm/guest.sh", (HERE / "guest.sh").read_bytes()),
            initrd.file("etc/vm/command.sh", script.encode()),
            initrd.file("etc/vm/shares", shares.encode()),
            initrd.file("etc/vm/hidden", hidden.encode()),
        ]
    )


def main() -> int:
    """Runs the command given after ``--`` and exits with its code."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.machine", description=main.__doc__)
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("--package", default="linux-image-amd64", help="Debian kernel meta package")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        result = boot(options.command, options.timeout, package=options.package, on_output=sys.stdout.write)
    except VmUnavailableError as error:
        sys.exit(f"no test machine: {error}")
    if result.exit_code is None:
        sys.exit(f"the machine ended without an exit code; its boot log is {BOOT_LOG}")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
