"""Threat: /proc/PID/root, cwd, exe of others lead out. Wall: pid namespace, the agent is not dumpable."""

from atoll import Sandbox
from tests.escape.attack import attack


def test_no_process_root_leads_out(sandbox: Sandbox, user: str) -> None:
    facts = attack(
        sandbox,
        """
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
        links = {f"{pid}/{link}": attempt(os.readlink, f"/proc/{pid}/{link}")
                 for pid in pids if int(pid) != os.getpid() for link in ("root", "cwd", "exe")}
        report(pids=len(pids), agent=links["1/root"], shadow=read("/proc/1/root/etc/shadow"),
               links=sorted(set(links.values())), twin=os.readlink("/proc/self/root"))
        """,
        user=user,
    )
    assert facts["pids"] < 10, "processes of the host are visible"
    assert facts["agent"] in {"EACCES", "EPERM"}
    assert facts["shadow"] in {"EACCES", "EPERM"}
    assert facts["twin"] == "/"
