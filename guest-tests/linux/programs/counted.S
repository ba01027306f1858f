# Loads, adds, stores, counts down and branches, 100,000 times. No library: it executes exactly 5 * 100000 + 5 instructions, of which
# 100001 are branches (SYSCALL is a far one).
        .globl  _start, counted_loop, counted_end
        .text
_start:
        mov     $100000, %ecx
        lea     data(%rip), %rsi
counted_loop:
        mov     (%rsi), %rax
        inc     %rax
        mov     %rax, 8(%rsi)
        dec     %ecx
        jnz     counted_loop
counted_end:
        xor     %edi, %edi
        mov     $60, %eax               # exit
        syscall

        .bss
        .balign 64
data:   .skip   64
        .section .note.GNU-stack, "", @progbits
