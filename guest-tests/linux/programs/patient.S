# The loop of counted.S, long enough for its recording to be disturbed: 5 * 40,000,000 + 5 instructions, of which 40000001 are branches.
        .globl  _start, patient_loop, patient_end
        .text
_start:
        mov     $40000000, %ecx
        lea     data(%rip), %rsi
patient_loop:
        mov     (%rsi), %rax
        inc     %rax
        mov     %rax, 8(%rsi)
        dec     %ecx
        jnz     patient_loop
patient_end:
        xor     %edi, %edi
        mov     $60, %eax               # exit
        syscall

        .bss
        .balign 64
data:   .skip   64
        .section .note.GNU-stack, "", @progbits
