"""A two-pass assembler for classic BPF, the language of seccomp(2) filters.

A program is a list of instructions and labels (plain strings); jumps name labels. `assemble` resolves them and
returns the bytes of ``struct sock_filter[]``. `kernel/seccomp.py` is the only user.

It emits only what the kernel's seccomp constant-action analysis understands (LD W ABS, JEQ, JGE, JGT, JA, AND,
RET), so that calls whose verdict needs no argument skip the filter altogether from Linux 5.11 on.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS of linux/bpf_common.h."""

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
GOTO = 0x05  # BPF_JMP | BPF_JA
IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
IF_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

_MAX_CONDITIONAL_DISTANCE = 255


class Instruction(NamedTuple):
    """One instruction; `yes` and `no` are labels, empty for "the next instruction"."""

    code: int
    k: int = 0
    yes: str = ""
    no: str = ""


def assemble(program: Sequence[Instruction | str]) -> bytes:
    """Return `program` as ``struct sock_filter[]``.

    Raises:
        ValueError: a label is missing, doubled or behind its jump, a jump is too far, the last instruction is no
            return, or the program is too long: bugs of the caller, which the kernel would report only as EINVAL.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for item in program:
        if isinstance(item, Instruction):
            instructions.append(item)
        elif item in labels:
            raise ValueError(f"label {item!r} is defined twice")
        else:
            labels[item] = len(instructions)
    if not 0 < len(instructions) <= MAX_INSTRUCTIONS:
        raise ValueError(f"{len(instructions)} instructions, need 1 to {MAX_INSTRUCTIONS}")
    last = program[-1]
    if not isinstance(last, Instruction) or last.code != RETURN:
        raise ValueError("the program does not end with a return")
    return b"".join(_encode(item, position, labels) for position, item in enumerate(instructions))


def _encode(item: Instruction, position: int, labels: dict[str, int]) -> bytes:
    """Encode the instruction at `position`: u16 code, u8 jump if true, u8 jump if false, u32 operand."""
    if item.code == GOTO:
        return struct.pack("<HBBI", item.code, 0, 0, _distance(position, item.yes, labels))
    yes, no = _distance(position, item.yes, labels), _distance(position, item.no, labels)
    if max(yes, no) > _MAX_CONDITIONAL_DISTANCE:
        raise ValueError(f"instruction {position} jumps more than {_MAX_CONDITIONAL_DISTANCE} ahead")
    return struct.pack("<HBBI", item.code, yes, no, item.k)


def _distance(position: int, label: str, labels: dict[str, int]) -> int:
    """Instructions to skip from `position` to `label`; classic BPF only jumps ahead."""
    if not label:
        return 0
    if label not in labels:
        raise ValueError(f"label {label!r} is not defined")
    if labels[label] <= position:
        raise ValueError(f"label {label!r} is not ahead of its jump")
    return labels[label] - position - 1
