"""Threat: two sandboxes share a uid and reach each other. Wall: a uid range of its own for each."""

from pathlib import Path

from tests.escape.attack import attack
from tests.sandboxes import Make


def kernel_uids(agent: int) -> set[int]:
    """The first id of the range that the agent's user namespace maps, and the agent's own uids."""
    rows = [line.split() for line in Path(f"/proc/{agent}/uid_map").read_text().splitlines()]
    status = Path(f"/proc/{agent}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    assert {int(uid) for uid in uids} == {int(rows[0][1])}
    assert rows[0][2] == "65536"
    return {int(rows[0][1])}


def test_no_two_sandboxes_share_a_kernel_uid(make: Make) -> None:
    sandboxes = [make() for _ in range(6)]
    bases = [kernel_uids(sbx._aio._running._guest.agent_pid) for sbx in sandboxes]
    flat = [base for each in bases for base in each]
    assert len(set(flat)) == 6
    assert all(abs(one - two) >= 65536 for one in flat for two in flat if one != two)
    assert min(flat) > 65536


def test_a_neighbours_processes_and_files_are_out_of_reach(make: Make) -> None:
    victim, attacker = make(), make()
    victim.commands.run("echo secret > /tmp/secret; (sleep 60 &) ; :").check()
    facts = attack(
        attacker,
        """
        names = [read(f"/proc/{pid}/comm").strip() for pid in os.listdir("/proc") if pid.isdigit()]
        report(names=names, file=read("/tmp/secret"))
        """,
        user="root",
    )
    assert "sleep" not in facts["names"]
    assert facts["file"] == "ENOENT"
    assert victim.commands.run("pgrep sleep && cat /tmp/secret").stdout.endswith("secret\n")
