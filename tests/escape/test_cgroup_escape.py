"""Threat: a process runs outside its cgroup or moves to another one. Wall: placement before exec, nothing to move with."""

from pathlib import Path

from atoll import Sandbox
from tests.escape.attack import attack
from tests.sandboxes import Make


def members(sandbox: Sandbox) -> set[int]:
    """All processes in the sandbox's cgroup as the host numbers them."""
    executor = sandbox._aio._running.executor
    assert executor._cgroup is not None
    return executor._cgroup.pids()


def test_the_first_instruction_is_already_inside(sandbox: Sandbox, user: str) -> None:
    facts = attack(sandbox, 'report(mine=read("/proc/self/cgroup"))', user=user)
    placed = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in facts["mine"].splitlines()}
    leaf = placed["memory"] if "memory" in placed else placed[""]
    assert leaf.startswith("/x")
    assert "atoll" not in facts["mine"], "the guest sees the host's cgroup path"


def test_nothing_can_move_into_the_agents_leaf(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        targets = [os.path.join(directory, name) for directory, _, files in os.walk("/sys/fs/cgroup") for name in files
                   if name in ("cgroup.procs", "tasks", "cgroup.threads")]
        report(targets=len(targets), moved=sorted({str(write(path, b"0")) for path in targets}),
               modes=sorted({str(attempt(os.chmod, path, 0o666)) for path in targets}), twin=bool(read(targets[0]) is not None))
        """,
        user=user,
    )
    assert facts["targets"] > 0
    assert set(facts["moved"]) <= {"EROFS", "EACCES", "EPERM"}
    assert set(facts["modes"]) <= {"EROFS", "EPERM"}


def test_a_fork_storm_at_exec_stays_inside(make: Make) -> None:
    """Many commands that fork at once: every process of the sandbox is in its cgroup, none runs elsewhere."""
    sandbox = make(pids=100)
    storm = "for i in $(seq 12); do (sleep 20 &) ; done; :"
    for _ in range(5):
        sandbox.commands.run(["/bin/sh", "-c", storm])
    agent = sandbox._aio._running._guest.agent_pid
    namespace = Path(f"/proc/{agent}/ns/pid").readlink()
    inside = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/pid").readlink() == namespace:
                    inside.add(int(entry.name))
            except OSError:
                continue
    assert len(inside) > 40
    assert inside <= members(sandbox)
