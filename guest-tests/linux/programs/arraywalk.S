# Reads and writes every element of one array, over and over. Usage: arraywalk [short], a twentieth of it.
# No library and no stack: whatever it loads or stores in user mode lies in the array, but for its first load.
        .equ    array_bytes, 1 << 21
        .equ    passes, 600

        .globl  _start, walk
        .text
_start:
        mov     $passes, %ecx
        mov     $passes / 20, %eax
        cmpq    $1, (%rsp)              # argc
        cmovne  %eax, %ecx
again:
        mov     $array, %rdi
        mov     $array + array_bytes, %rsi
walk:
        mov     (%rdi), %rax
        add     $1, %rax
        mov     %rax, (%rdi)
        add     $8, %rdi
        cmp     %rsi, %rdi
        jb      walk
        dec     %ecx
        jnz     again
        xor     %edi, %edi
        mov     $60, %eax               # exit
        syscall

        .type   array, @object
        .size   array, array_bytes
        .comm   array, array_bytes, 64
        .section .note.GNU-stack, "", @progbits
