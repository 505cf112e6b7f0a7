"""The injection table: whatever a name, path or text holds, it is one word of the command, at its own place.

The command line is read back by the tables of the launcher and of bubblewrap; what was asked for must be exactly
what they would understand.
"""

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from atoll.isolate import bubblewrap
from atoll.isolate.bubblewrap import KEPT_CAPABILITIES, Bubblewrap
from atoll.isolate.driver import Launch, Resources
from atoll.kernel import cgroup
from atoll.model.errors import ProvisionError
from atoll.model.limits import Limits
from atoll.model.names import new_id
from atoll.model.plan import LaunchPlan, SandboxSpec
from atoll.model.protection import REQUIRED, Protection
from atoll.model.template import Directory, File, Rootfs, Symlink, Tree
from atoll.mount.workspace import resolve_workspace
from atoll.plan import compile_plan
from atoll.provision.host import host_template
from tests.hostile.rig import open_fds
from tests.unit.test_plan import FULL, ROOTLESS, TEMPLATE

ROOT = Path(__file__).resolve().parent.parent.parent
BASE = 200_000

WORDS = {
    "write": 2,
    "cgroupns": 0,
    "cpus": 1,
    "stage": 1,
    "tree": 3,
    "idtree": 7,
    "cgroupdir": 2,
    "keep": 2,
    "userns": 2,
    "userns-self": 0,
    "layer": 3,
    "pts": 2,
    "dir": 4,
    "file": 5,
    "symlink": 2,
    "overlay": 5,
}
"""Words after each op of the launcher."""

BWRAP_WORDS = {
    **dict.fromkeys(("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-user"), 0),
    **dict.fromkeys(("--die-with-parent", "--as-pid-1", "--new-session", "--disable-userns"), 0),
    **dict.fromkeys(("--hostname", "--cap-drop", "--cap-add", "--uid", "--gid", "--proc", "--dev", "--remount-ro"), 1),
    **dict.fromkeys(("--bind", "--dev-bind", "--ro-bind"), 2),
}
"""Words after each option of bubblewrap that Atoll uses (bwrap(1))."""

ODD = {
    "colon": "a:b",
    "comma": "a,b",
    "plus": "a+b",
    "percent": "a%sb%n",
    "equals": "a=b",
    "blank": "a b",
    "newline": "a\nb",
    "tab": "a\tb",
    "dash": "-b",
    "dashes": "--",
    "option": "--bind",
    "op": "userns",
    "quotes": "'\"`",
    "shell": "$(id);|&",
    "backslash": "a\\b\\054c",
    "glob": "*?[a]",
    "hash": "#b",
    "overlay options": "x,upperdir=y",
    "no UTF-8": "a\udcffb",
    "unicode": "é漢\u202e",
    "long": "x" * 255,
}


class Command(NamedTuple):
    ops: list[list[str]]
    options: list[list[str]]
    agent: list[str]

    def all(self, name: str) -> list[list[str]]:
        return [op[1:] for op in (*self.ops, *self.options) if op[0] == name]


def parsed(argv: list[str]) -> Command:
    """The command as the launcher and bubblewrap understand it."""
    words = iter(argv)
    assert next(words).endswith("/atoll-launch")
    ops = list(take(words, WORDS))
    assert next(words).endswith("/bwrap")
    options = list(take(words, BWRAP_WORDS))
    return Command(ops, options, list(words))


def take(words: Iterator[str], table: dict[str, int]) -> Iterator[list[str]]:
    while (word := next(words)) != "--":
        yield [word, *(next(words) for _ in range(table[word]))]


def plan_for(rootless: bool = False, rootfs: Rootfs = TEMPLATE.rootfs, **spec: object) -> LaunchPlan:
    capabilities = ROOTLESS if rootless else FULL
    template = msgspec.structs.replace(TEMPLATE, rootfs=rootfs)
    return compile_plan(SandboxSpec(**spec), template, capabilities, "abcdefgh")


@contextmanager
def launched(plan: LaunchPlan, group: cgroup.SandboxCgroup | None = None) -> Iterator[tuple[Command, Launch]]:
    base = None if plan.single_uid else BASE
    launch = Bubblewrap().launch(plan, Resources(uid_base=base, cgroup=group))
    try:
        yield parsed(launch.argv), launch
    finally:
        launch.close()


def target_of(launch: Launch, fd: str) -> str:
    assert int(fd) in launch.fds
    return os.readlink(f"/proc/self/fd/{fd}")


def test_the_table_is_that_of_the_launcher():
    source = (ROOT / "launcher/main.c").read_text()
    assert {name: int(words) for name, words in re.findall(r'^\t\{"([a-z-]+)",\s+(\d),', source, re.MULTILINE)} == WORDS


# --- injection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rootless", [False, True], ids=["root", "rootless"])
@pytest.mark.parametrize("mode", ["overlay", "ro"])
@pytest.mark.parametrize("name", ODD)
def test_a_workspace_is_a_descriptor_and_no_word(tmp_path: Path, name: str, mode: str, rootless: bool):
    directory = tmp_path / ODD[name]
    directory.mkdir()
    workspace = resolve_workspace(directory, mode, Path("/nonexistent"))
    with launched(plan_for(rootless, workspace=workspace)) as (command, launch):
        [tree] = [
            op for op in command.ops if op[0] in {"tree", "idtree"} and target_of(launch, op[1]) == str(directory)
        ]
        owner, inside = [str(number) for number in workspace.owner], str(BASE + 1000)
        assert tree[2:] == (["lower", "ro"] if rootless else ["lower", "ro", *owner, inside, inside])
        [overlay] = command.all("overlay")
        assert overlay[:4] == ["layer/root/workspace", "lower", "layer/upper", "layer/work"]
        assert overlay[4] in {"userxattr", "trusted"}
        assert (["/workspace"] in command.all("--remount-ro")) == (mode == "ro")
        assert not any(str(tmp_path) in word for word in launch.argv)


@pytest.mark.parametrize("name", ODD)
def test_every_part_of_a_template_is_a_word_of_its_own(tmp_path: Path, name: str):
    odd = ODD[name]
    source = tmp_path / odd
    source.mkdir()
    rootfs = Rootfs(
        directories=(Directory(path=f"/{odd}", mode=0o1711, uid=7, gid=8),),
        files=(File(path=f"/{odd}", text=odd, mode=0o600), File(path="/empty", text="")),
        symlinks=(Symlink(path=f"/{odd}", target=odd),),
        trees=(Tree(source=str(source), target=f"/{odd}"),),
    )
    path = f"layer/root/{odd}"
    with launched(plan_for(rootfs=rootfs)) as (command, launch):
        assert [path, "1711", str(BASE + 7), str(BASE + 8)] in command.all("dir")
        assert [path, "600", str(BASE), str(BASE), odd] in command.all("file")
        assert ["layer/root/empty", "644", str(BASE), str(BASE), ""] in command.all("file")
        assert command.all("symlink") == [[odd, path]]
        [tree] = [op for op in command.all("tree") if op[1] == path]
        assert target_of(launch, tree[0]) == str(source)
        assert tree[2] == "ro"


@pytest.mark.parametrize("name", ODD)
def test_a_host_name_is_one_word_even_if_it_was_never_checked(name: str):
    plan = msgspec.structs.replace(plan_for(), hostname=ODD[name])
    with launched(plan) as (command, _):
        assert command.all("--hostname") == [[ODD[name]]]
        texts = {op[0]: op[4] for op in command.all("file")}
        assert texts["layer/root/etc/hostname"] == f"{ODD[name]}\n"
        assert texts["layer/root/etc/hosts"] == f"127.0.0.1 localhost {ODD[name]}\n::1 localhost\n"


def test_variables_and_commands_are_in_no_word():
    with launched(plan_for(env={"CANARY": "secret", "LD_PRELOAD": "/canary"}, user="root")) as (_, launch):
        assert not any("CANARY" in word or "canary" in word or "secret" in word for word in launch.argv)


def test_limits_are_plain_numbers():
    with launched(plan_for(limits=Limits(memory_bytes=1 << 50, disk_bytes=1 << 49, cpus=0.01))) as (command, _):
        [layer] = command.all("layer")
        assert layer == ["layer", str(1 << 49), str(1 << 30)]
        assert all(re.fullmatch(r"\d+(,\d+)*", cpus) for [cpus] in command.all("cpus"))


# --- the walls that must be in every command -------------------------------------------------------------------------


def test_root_never_runs_bubblewrap_as_itself():
    with launched(plan_for()) as (command, _):
        names = [op[0] for op in command.ops]
        assert command.all("userns") == [[str(BASE), "65536"]]
        assert "userns-self" not in names
        # Whatever writes as host root comes before the user namespace, the overlay (where the kernel can) after it.
        assert set(names[names.index("userns") + 1 :]) <= {"pts", "overlay", "keep", "cgroupdir"}
        dropped, added = command.all("--cap-drop"), command.all("--cap-add")
        assert dropped == [["ALL"]]
        assert {name for [name] in added} == {*KEPT_CAPABILITIES, "CAP_SETPCAP"}
        assert command.agent[-2:] == ["--keep-caps", "800000fb"]


def test_without_root_there_is_one_user_and_no_capability():
    with launched(plan_for(rootless=True)) as (command, _):
        names = [op[0] for op in command.ops]
        assert "userns" not in names
        assert names.index("userns-self") < names.index("stage")
        assert ["--unshare-user"] in command.options
        assert ["--disable-userns"] in command.options
        assert (command.all("--uid"), command.all("--gid")) == ([["1000"]], [["1000"]])
        assert command.all("--cap-add") == []
        assert "--keep-caps" not in command.agent
        assert {op[2] for op in command.all("dir")} == {"0"}


@pytest.mark.parametrize("rootless", [False, True], ids=["root", "rootless"])
def test_namespaces_and_masks(rootless: bool):
    with launched(plan_for(rootless)) as (command, _):
        flags = {option[0] for option in command.options}
        assert flags >= {"--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"}
        assert flags >= {"--die-with-parent", "--as-pid-1", "--new-session"}
        assert command.all("--remount-ro") == [["/dev"]]
        assert command.all("--bind") == [["/mnt/layer/root", "/"], ["/mnt/layer/shm", "/dev/shm"]]
        masked = {target for source, target in command.all("--ro-bind") if source == "/dev/null"}
        assert masked == {path for path in ("/proc/keys", "/proc/key-users", "/proc/kcore", "/proc/timer_list")
                          if os.path.exists(path)}  # fmt: skip
        assert command.agent[0] == "/.atoll/agent"


def test_every_tree_of_the_host_is_read_only_and_never_idmapped():
    plan = plan_for(rootfs=host_template().rootfs)
    with launched(plan) as (command, launch):
        assert command.all("idtree") == []
        trees = command.all("tree")
        assert {mode for _, _, mode in trees} == {"ro"}
        shown = {target_of(launch, fd) for fd, _, _ in trees}
        assert shown >= {tree.source for tree in plan.template.rootfs.trees}
        assert command.all("dir")  # the launcher makes every parent before


def test_seccomp_is_passed_unless_it_was_given_up():
    with launched(plan_for()) as (command, launch):
        [[fd, number]] = command.all("keep")
        assert command.agent[1:3] == ["--seccomp", number]
        assert int(number) not in launch.fds
        assert len(os.pread(int(fd), 1 << 20, 0)) % 8 == 0
        assert os.lseek(int(fd), 0, os.SEEK_CUR) == 0
    with launched(plan_for(disable=frozenset({Protection.SECCOMP}))) as (command, _):
        assert command.all("keep") == []
        assert "--seccomp" not in command.agent


def test_descriptors_for_the_agent_get_numbers_that_nothing_inherited_has():
    # In a process of its own, where the lowest numbers are free and the trees get them.
    script = """
from tests.unit.test_launch_argv import host_template, launched, plan_for
with launched(plan_for(rootfs=host_template().rootfs)) as (command, launch):
    [[fd, number]] = command.all("keep")
    print(min(launch.fds), int(number) in launch.fds, int(number) < 3 + len(launch.fds) + 1)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "3 False True\n"


@pytest.mark.skipif(os.geteuid() != 0 or cgroup.detect().root is None, reason="needs cgroups of its own")
def test_the_cgroup_is_entered_first_and_handed_on_last():
    root = cgroup.detect().root
    assert root is not None
    group = root.create(new_id(), Limits().validate())
    try:
        with launched(plan_for(), group) as (command, launch):
            names = [op[0] for op in command.ops]
            first = names.index("stage")
            assert set(names[:first]) <= {"write", "cgroupns", "cpus"}
            assert names[0] == "write"
            assert names.count("cgroupns") == 1
            kept = [number for _, number in command.all("cgroupdir") + command.all("keep")]
            assert len(set(kept)) == len(kept)
            assert not set(map(int, kept)) & set(launch.fds)
            cgroups = {target_of(launch, fd) for fd, _ in command.all("cgroupdir")}
            assert cgroups <= set(group.paths())
            flags = command.agent[1:-2]
            assert sorted(flags[1::2], key=int) == sorted(kept, key=int)
            assert set(flags[::2]) == {"--seccomp", f"--cgroup{group.version}"}
            views = [name for _, name, _ in command.all("tree") if name.startswith("layer/root/sys/fs/cgroup")]
            assert len(views) == len(group.views())
    finally:
        group.remove()


@pytest.mark.parametrize("cpus", [0.5, 1, 2, 64])
def test_programs_see_as_many_processors_as_they_may_use(cpus: float):
    usable = os.sched_getaffinity(0)
    with launched(plan_for(limits=Limits(cpus=cpus))) as (command, _):
        wanted = math.ceil(cpus)
        chosen = command.all("cpus")
        if wanted >= len(usable):
            assert chosen == []
        else:
            numbers = [int(number) for number in chosen[0][0].split(",")]
            assert len(set(numbers)) == wanted
            assert set(numbers) <= usable
        texts = {op[0]: op[4] for op in command.all("file")}
        seen = min(wanted, os.cpu_count() or 1)
        assert texts["layer/root/sys/devices/system/cpu/online"] == ("0\n" if seen == 1 else f"0-{seen - 1}\n")


def test_sandboxes_take_turns_on_the_processors():
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one processor only")
    seen = set()
    for _ in range(len(os.sched_getaffinity(0))):
        with launched(plan_for(limits=Limits(cpus=1))) as (command, _):
            seen.add(command.all("cpus")[0][0])
    assert len(seen) == len(os.sched_getaffinity(0))


# --- what cannot be opened -------------------------------------------------------------------------------------------


def test_descriptors_are_closed_again():
    before = open_fds()
    with launched(plan_for(rootfs=host_template().rootfs)) as (_, launch):
        assert all(not os.get_inheritable(fd) for fd in launch.fds)
        launch.close()
    assert open_fds() == before


def test_a_workspace_that_went_away_or_became_a_link_leaves_nothing(tmp_path: Path):
    workspace_dir = tmp_path / "workspace"
    workspace_dir.mkdir()
    plan = plan_for(workspace=resolve_workspace(workspace_dir, "ro", Path("/nonexistent")))
    workspace_dir.rmdir()
    for replace in (lambda: None, lambda: workspace_dir.symlink_to("/etc"), workspace_dir.touch):
        workspace_dir.unlink(missing_ok=True)
        replace()
        before = open_fds()
        with pytest.raises(ProvisionError) as raised:
            Bubblewrap().launch(plan, Resources(uid_base=BASE, cgroup=None))
        assert str(workspace_dir) in str(raised.value)
        assert open_fds() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_a_workspace_that_changed_hands_is_refused(tmp_path: Path):
    plan = plan_for(workspace=resolve_workspace(tmp_path, "ro", Path("/nonexistent")))
    os.chown(tmp_path, 4321, 4321)
    before = open_fds()
    with pytest.raises(ProvisionError, match="was replaced"):
        Bubblewrap().launch(plan, Resources(uid_base=BASE, cgroup=None))
    assert open_fds() == before


def test_a_host_without_bubblewrap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda *_args, **_kw: None)
    before = open_fds()
    with pytest.raises(ProvisionError, match="apt-get install bubblewrap"):
        Bubblewrap().launch(plan_for(), Resources(uid_base=BASE, cgroup=None))
    assert open_fds() == before


def test_the_driver_enforces_what_a_sandbox_needs():
    capabilities = Bubblewrap().probe()
    assert capabilities.enforces | set(capabilities.missing) == REQUIRED
    assert not capabilities.enforces & set(capabilities.missing)
    assert (Protection.UID_RANGE in capabilities.missing) == (os.geteuid() != 0)
