# Loads and stores that end at every level: walks arrays that fit into the L1, the L2, the L3 and none of them, a line at a time. Of each line
# it loads twice, so that the second load finds a fill in flight where the first one missed, and stores once. No library and no stack. All
# pages are there from the beginning: what a fault brings in, the kernel has just written.
        .equ    line, 64
        .equ    arrays, 4
        .equ    array_bytes, 12 << 20

        .equ    madv_populate_write, 23

        .globl  _start, walk
        .text
_start:
        mov     $array, %edi
        mov     $array_bytes, %esi
        mov     $madv_populate_write, %edx
        mov     $28, %eax               # madvise
        syscall
        test    %eax, %eax
        jnz     leave
        xor     %ebx, %ebx
next_size:
        mov     sizes(,%rbx,8), %rsi
        mov     $array, %edi
        add     %rdi, %rsi
        mov     turns(,%rbx,8), %rcx
again:
        mov     $array, %edi
walk:
        mov     (%rdi), %rax
        add     8(%rdi), %rax
        mov     %rax, 16(%rdi)
        add     $line, %rdi
        cmp     %rsi, %rdi
        jb      walk
        dec     %rcx
        jnz     again
        inc     %ebx
        cmp     $arrays, %ebx
        jne     next_size
        xor     %eax, %eax
leave:
        mov     %eax, %edi
        mov     $60, %eax               # exit
        syscall

        .section .rodata
        .balign 64
sizes:  .quad   16 << 10, 128 << 10, 3 << 20, array_bytes
turns:  .quad   128, 16, 2, 1
        .type   array, @object
        .size   array, array_bytes
        .comm   array, array_bytes, 4096
        .section .note.GNU-stack, "", @progbits
