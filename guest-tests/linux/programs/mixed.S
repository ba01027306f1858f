# Strings, calls, and instructions that load, store and branch in many ways, 20 times over. No library. In each round 18 conditional branches
# retire: 1 behind the comparison, 8 that end the inner loop, 8 in the leaf, 1 that ends the round. The other counts are QEMU's to say
# (count-with-qemu).
        .globl  _start
        .text
_start:
        mov     $20, %r12d
round:
        lea     source(%rip), %rsi
        lea     target(%rip), %rdi
        mov     $64, %ecx
        rep movsb
        lea     source(%rip), %rsi
        lea     target(%rip), %rdi
        mov     $64, %ecx
        repe cmpsb
        jne     failed
        lea     target(%rip), %rdx
        mov     $8, %ecx
inner:
        call    leaf
        dec     %ecx
        jnz     inner
        mov     $1000003, %eax
        mov     $17, %ebx
        xor     %edx, %edx
        div     %ebx
        imul    %rbx, %rax
        shl     $3, %rax
        lea     pointer(%rip), %rbx
        movq    %rax, %xmm0
        jmp     *(%rbx)
back:
        dec     %r12d
        jnz     round
        xor     %edi, %edi
        jmp     leave
failed:
        mov     $1, %edi
leave:
        mov     $60, %eax               # exit
        syscall
leaf:
        push    %rbx
        mov     (%rdx,%rcx,4), %rbx
        add     %rbx, (%rdx)
        test    $1, %cl
        jz      1f
        lock xadd %rbx, 8(%rdx)
1:      pop     %rbx
        ret

        .data
        .balign 64
source: .quad   1, 2, 3, 4, 5, 6, 7, 8
pointer: .quad  back
        .bss
        .balign 64
target: .skip   64
        .section .note.GNU-stack, "", @progbits
