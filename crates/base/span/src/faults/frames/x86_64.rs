//! Frames on x86-64 (System V ABI): the registers rbp, rbx and r12 to r15.

use super::{MARK, MARK_OF_ADDRESS};

core::arch::global_asm!(
    ".pushsection .text.burst_span_guarded_call,\"ax\",@progbits",
    ".globl burst_span_guarded_call",
    ".hidden burst_span_guarded_call",
    ".type burst_span_guarded_call,@function",
    "burst_span_guarded_call:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r12, 0",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r13, 0",
    "push r14",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r14, 0",
    "push r15",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r15, 0",
    "sub rsp, 40",
    ".cfi_adjust_cfa_offset 40",
    "lea rax, [rip + 3f]",
    "mov [rsp + 16], rax",
    "movabs rax, {of_address}",
    "xor rax, rsp",
    "mov [rsp + 8], rax",
    "movabs rax, {mark}",
    "mov [rsp], rax",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "mov eax, 1",
    "2:",
    "mov qword ptr [rsp], 0",
    "mov qword ptr [rsp + 8], 0",
    "add rsp, 40",
    ".cfi_remember_state",
    ".cfi_adjust_cfa_offset -40",
    "pop r15",
    ".cfi_adjust_cfa_offset -8",
    "pop r14",
    ".cfi_adjust_cfa_offset -8",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    // Where a fault continues, with the frame's address as the stack pointer.
    "3:",
    ".cfi_restore_state",
    "xor eax, eax",
    "jmp 2b",
    ".cfi_endproc",
    ".size burst_span_guarded_call, . - burst_span_guarded_call",
    ".popsection",
    mark = const MARK,
    of_address = const MARK_OF_ADDRESS,
);

/// The stack pointer of a thread at a fault.
pub(super) fn stack(registers: &libc::mcontext_t) -> u64 {
    registers.gregs[libc::REG_RSP as usize] as u64
}

/// Lets the thread continue at `landing`, with `frame` as its stack pointer.
pub(super) fn resume(registers: &mut libc::mcontext_t, frame: u64, landing: u64) {
    let registers = &mut registers.gregs;
    registers[libc::REG_RSP as usize] = frame as i64;
    registers[libc::REG_RIP as usize] = landing as i64;
    // The direction flag: a copy from the end sets it.
    registers[libc::REG_EFL as usize] &= !(1 << 10);
}
