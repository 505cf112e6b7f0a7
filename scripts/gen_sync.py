"""Generate `client/sync.py` from `client/aio.py`: the same signatures and docstrings, each call through the portal.

``gen_sync.py`` writes the file, ``gen_sync.py --check`` only compares whole texts and exits 1 on a difference.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/atoll/client/aio.py"
TARGET = ROOT / "src/atoll/client/sync.py"

HEADER = '''"""`Sandbox`: the synchronous face of `AsyncSandbox`.

Generated from client/aio.py by scripts/gen_sync.py; do not edit.
"""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from atoll.client.aio import AsyncCommands, AsyncSandbox
from atoll.client.portal import iterate, off_loop, portal
from atoll.client.request import DEFAULT_TIMEOUT_S
from atoll.client.result import CommandResult
from atoll.model.plan import LaunchPlan
from atoll.model.protection import Posture
from atoll.model.status import Violation

OnText = Callable[[str], Any]
OnBytes = Callable[[bytes], Any]
'''

CONSTRUCTORS = {
    "Sandbox": '''    def __init__(self, sandbox: AsyncSandbox) -> None:
        """Not for callers: use `create`."""
        self._aio = sandbox
        self.commands = Commands(sandbox.commands)
        """Runs commands."""
''',
    "Commands": '''    def __init__(self, commands: AsyncCommands) -> None:
        """Not for callers: use `Sandbox.commands`."""
        self._aio = commands
''',
}
NOQA = {
    "**options: Any) -> Self:": "  # noqa: ANN401 - as in client/aio.py",
    "    def run(": "  # noqa: PLR0913 - as in client/aio.py",
}
RENAMED = {"AsyncSandbox": "Sandbox", "AsyncCommands": "Commands", "async with": "with", "__aenter__": "__enter__"}
RENAMED |= {"__aexit__": "__exit__", "AsyncIterable[bytes]": "Iterable[bytes]", " (needs asyncio)": ""}


def main() -> int:
    """Write or check; returns the exit status."""
    text = generate()
    if "--check" not in sys.argv:
        TARGET.write_text(text)
        return 0
    if not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET} is not what scripts/gen_sync.py makes of {SOURCE.name}: run it")
        return 1
    return 0


def generate() -> str:
    """The text of the synchronous module."""
    tree = ast.parse(SOURCE.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    body = "\n\n".join(_class(node) for node in classes)
    for old, new in RENAMED.items():
        body = body.replace(old, new)
    return _format(HEADER + "\n\n" + body + '\n\n__all__ = ["Commands", "Sandbox"]\n')


def _class(node: ast.ClassDef) -> str:
    name = RENAMED[node.name]
    parts = [f"class {name}:", _docstring(node, 4), ""]
    # The constructor takes the asynchronous object; placeholders keep its names from being renamed.
    parts.append(f"    # constructor of {name}")
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name != "__init__":
            parts += ["", _method(item)]
    return "\n".join(parts) + "\n"


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = [ast.unparse(item) for item in node.decorator_list]
    lines = [f"    @{item}" for item in decorators]
    returns = ast.unparse(node.returns) if node.returns else "None"
    lines += [f"    def {node.name}({ast.unparse(node.args)}) -> {returns}:", _docstring(node, 8)]
    lines.append(f"        {_body(node, classmethod_='classmethod' in decorators, property_='property' in decorators)}")
    return "\n".join(lines)


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef, *, classmethod_: bool, property_: bool) -> str:
    if node.name == "__aenter__":
        return "return self"
    if node.name == "__aexit__":
        return "self.kill()"
    call = f"{node.name}({_arguments(node.args)})"
    if classmethod_:
        return f"return cls(portal.call(ASYNC_SANDBOX.{call}))"
    if property_:
        return f"return self._aio.{node.name}"
    return f"return portal.call(self._aio.{call})"


def _arguments(args: ast.arguments) -> str:
    words = [arg.arg for arg in args.args if arg.arg not in ("self", "cls")]
    words += [f"{arg.arg}={_value(arg.arg)}" for arg in args.kwonlyargs]
    if args.kwarg:
        words.append(f"**{args.kwarg.arg}")
    return ", ".join(words)


def _value(name: str) -> str:
    if name.startswith("on_"):
        return f"off_loop({name})"
    return "iterate(stdin)" if name == "stdin" else name


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: int) -> str:
    text = ast.get_docstring(node, clean=True) or ""
    pad = " " * indent
    lines = text.splitlines()
    if len(lines) == 1:
        return f'{pad}"""{text}"""'
    rest = "\n".join(f"{pad}{line}" if line else "" for line in lines[1:])
    return f'{pad}"""{lines[0]}\n{rest}\n{pad}"""'


def _format(text: str) -> str:
    for name, constructor in CONSTRUCTORS.items():
        text = text.replace(f"    # constructor of {name}\n", constructor)
    text = text.replace("ASYNC_SANDBOX", "AsyncSandbox")
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    text = subprocess.run(command, input=text, text=True, capture_output=True, check=True, cwd=ROOT).stdout
    for line, why in NOQA.items():
        text = text.replace(f"{line}\n", f"{line}{why}\n")
    return text


if __name__ == "__main__":
    sys.exit(main())
