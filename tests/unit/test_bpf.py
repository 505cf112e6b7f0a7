"""The assembler: exact bytes, and every mistake that the kernel would report only as EINVAL."""

import struct

import pytest

from atoll.kernel.bpf import (
    AND,
    GOTO,
    IF_AT_LEAST,
    IF_EQUAL,
    IF_GREATER,
    LOAD,
    MAX_INSTRUCTIONS,
    RETURN,
    Instruction,
    assemble,
)

END = Instruction(RETURN, 7)


def decoded(code: bytes) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("<HBBI", code))


def test_opcodes_are_those_of_linux_filter_h():
    # BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_JMP|BPF_{JA,JEQ,JGT,JGE}|BPF_K, BPF_RET|BPF_K
    assert (LOAD, AND, GOTO, IF_EQUAL, IF_GREATER, IF_AT_LEAST, RETURN) == (
        0x00 | 0x00 | 0x20,
        0x04 | 0x50,
        0x05 | 0x00,
        0x05 | 0x10,
        0x05 | 0x20,
        0x05 | 0x30,
        0x06,
    )


def test_labels_become_relative_distances():
    program = [
        Instruction(LOAD, 4),
        Instruction(IF_EQUAL, 0xC000003E, yes="there", no="end"),
        Instruction(RETURN, 1),
        "there",
        Instruction(GOTO, yes="end"),
        Instruction(AND, 0xFF),
        "end",
        END,
    ]
    assert decoded(assemble(program)) == [
        (LOAD, 0, 0, 4),
        (IF_EQUAL, 1, 3, 0xC000003E),
        (RETURN, 0, 0, 1),
        (GOTO, 0, 0, 1),
        (AND, 0, 0, 0xFF),
        (RETURN, 0, 0, 7),
    ]


def test_a_conditional_jump_reaches_255_instructions_and_goto_any():
    filler = [Instruction(LOAD, 0)] * 255
    assert decoded(assemble([Instruction(IF_EQUAL, 0, yes="end"), *filler, "end", END]))[0][1] == 255
    assert decoded(assemble([Instruction(GOTO, yes="end"), *filler, *filler, "end", END]))[0] == (GOTO, 0, 0, 510)
    with pytest.raises(ValueError, match="more than 255"):
        assemble([Instruction(IF_EQUAL, 0, no="end"), *filler, Instruction(LOAD, 0), "end", END])


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        pytest.param([], "0 instructions", id="empty"),
        pytest.param([END] * (MAX_INSTRUCTIONS + 1), "4097 instructions", id="too long"),
        pytest.param([END, Instruction(LOAD, 0)], "does not end with a return", id="falls off the end"),
        pytest.param([END, "behind"], "does not end with a return", id="label behind the end"),
        pytest.param(["a", END, "a", END], "'a' is defined twice", id="label twice"),
        pytest.param([Instruction(IF_EQUAL, 0, yes="nowhere"), END], "'nowhere' is not defined", id="no such label"),
        pytest.param(["a", END, Instruction(GOTO, yes="a"), END], "'a' is not ahead", id="backwards"),
    ],
)
def test_mistakes_are_named(program: list[Instruction | str], problem: str):
    with pytest.raises(ValueError, match=problem):
        assemble(program)
