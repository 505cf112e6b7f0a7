"""Threat: signals to host processes or to the agent. Wall: pid namespace; PID 1 takes no signal from inside."""

import subprocess

from atoll import Sandbox
from tests.escape.attack import attack


def test_the_host_and_the_agent_survive(sandbox: Sandbox, user: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        facts = attack(
            sandbox,
            f"""
            host = [attempt(os.kill, {bystander.pid}, number) for number in (0, 9)]
            agent = [attempt(os.kill, 1, number) for number in (9, 15, 19, 11)]
            child = os.fork()
            if child == 0:
                import time; time.sleep(20); os._exit(0)
            report(host=host, agent=agent, twin=attempt(os.kill, child, 9))
            """,
            user=user,
        )
        assert bystander.poll() is None
        bystander.kill()
    assert facts["host"] == ["ESRCH", "ESRCH"]
    assert facts["twin"] is None
    assert sandbox.commands.run(["/bin/echo", "alive"]).stdout == "alive\n"


def test_kill_everything_reaches_only_the_sandbox(sandbox: Sandbox, user: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        result = sandbox.commands.run("kill -9 -1; sleep 5", user=user)
        assert bystander.poll() is None
        bystander.kill()
    assert result.signal == 9 or result.exit_code == 0
    assert sandbox.commands.run(["/bin/echo", "alive"]).stdout == "alive\n"
