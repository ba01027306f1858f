# A loop of eight equal instructions and its branch. Usage: loop8 (runs a fixed number of rounds).
# No library and no memory access: whatever is sampled in user mode is the loop.
        .globl  _start, loop8, loop8_branch, loop8_end
        .text
_start:
        mov     $8 * 120000000, %rdi
        call    loop8
        xor     %edi, %edi
        mov     $60, %eax               # exit
        syscall

        .type   loop8, @function
        .p2align 4
loop8:
        .rept   8
        dec     %rdi
        .endr
loop8_branch:
        jnz     loop8
loop8_end:
        ret
        .size   loop8, . - loop8
        .section .note.GNU-stack, "", @progbits
