# Jumps from line to line through twice as much code as an L1 holds, and back to its beginning, 40 times. No library and no memory access.
        .equ    line, 64
        .equ    code_bytes, 64 << 10
        .equ    rounds, 40

        .globl  _start, lines, lines_end
        .text
_start:
        mov     $rounds, %ecx
        jmp     lines

        .balign line
lines:
        .rept   code_bytes / line - 1
        jmp     . + line
        .balign line
        .endr
        dec     %ecx
        jnz     lines
lines_end:
        xor     %edi, %edi
        mov     $60, %eax               # exit
        syscall
        .section .note.GNU-stack, "", @progbits
