"""Runs the cgroup and limits tests again under cgroup v2, as root and as an ordinary user, in one boot."""

import re
from collections.abc import Callable

import pytest

from tests.vm.kernel import VmUnavailableError
from tests.vm.machine import BOOT_LOG, REPOSITORY, Result, boot

SUITE = ("tests/unit/test_cgroup*.py", "tests/conformance/test_limits*.py", "tests/conformance/test_rootless*.py")
PYTEST = "pytest -p no:cacheprovider -p no:hypothesispytest --require-drivers --timeout=100 -v"
USERS = {"root": "", "user": "tests/vm/as-user.sh"}

pytestmark = pytest.mark.timeout(240)  # the boot counts towards the first test


@pytest.fixture(scope="module")
def machine(require_driver: Callable[[str, str | None], None]) -> Result:
    files = " ".join(str(path.relative_to(REPOSITORY)) for pattern in SUITE for path in REPOSITORY.glob(pattern))
    assert files, f"no tests match {SUITE}"
    script = "".join(  # side by side, one per processor; each line of output says whose it is
        f"{{ {prefix} {PYTEST} {files}; echo exit code: $?; }} 2>&1 | sed -u 's/^/{user}: /' &\n"
        for user, prefix in USERS.items()
    )
    try:
        return boot(["sh", "-c", f"{script}wait"], timeout_s=220)
    except VmUnavailableError as error:
        require_driver("vm", str(error))
        raise


@pytest.mark.parametrize("user", USERS)
def test_cgroup_and_limits_suites_pass(machine: Result, user: str) -> None:
    output = "\n".join(line for line in machine.output.splitlines() if line.startswith(user))
    found = re.search(rf"^{user}: exit code: (\d+)$", output, re.MULTILINE)
    assert found, f"not done in time, or the machine crashed (boot log: {BOOT_LOG}):\n{machine.output}"
    assert found[1] == "0", output
