# Calls through four levels to a small loop, 400 times. Every branch has a label, so that a test knows the whole path. No library.
        .equ    rounds, 400

        .globl  _start, call_outer, next_round, call_middle, return_outer, skip, call_inner, return_middle, call_leaf, return_inner, leaf
        .globl  leaf_loop, return_leaf, last
        .text
_start:
        mov     $rounds, %r12d
call_outer:
        call    outer
        dec     %r12d
next_round:
        jnz     call_outer
last:
        xor     %edi, %edi
        mov     $60, %eax               # exit
        syscall

outer:
        inc     %ebx
call_middle:
        call    middle
        inc     %ebx
return_outer:
        ret

middle:
        test    $1, %r12b
skip:
        jz      call_inner
        inc     %ebx
call_inner:
        call    inner
        inc     %ebx
return_middle:
        ret

inner:
        inc     %ebx
call_leaf:
        call    leaf
        inc     %ebx
return_inner:
        ret

leaf:
        mov     $8, %ecx
1:      inc     %ebx
        dec     %ecx
leaf_loop:
        jnz     1b
return_leaf:
        ret
        .section .note.GNU-stack, "", @progbits
