# Follows pointers through memory that is in the L1, in the L2, in the L3 and in none of them, and stores there: each class has loops of its
# own that do nothing else. The pointers lead through all of 8 KiB, of 64 KiB and of 2 MiB before a line comes again, far from one to the next,
# and were made in that order: what does not fit into a cache is never found there, and what the handler of a sample evicts from the L1 is back
# before the next one. Those of the last class were made before 28 MiB, more than any L3 of ours holds, were written. No library.
        .equ    line, 64
        .equ    accesses, 10000         # loads, and stores, in each class
        .equ    array_bytes, 16 << 20
        .equ    sweep_bytes, 28 << 20
        .equ    piece_bytes, 1 << 20

        .equ    l1_bytes, 8 << 10
        .equ    l2_bytes, 64 << 10
        .equ    l3_bytes, 2 << 20
        .equ    memory_bytes, array_bytes
        .equ    far, 1021 * line        # has no divisor in common with the lines of a class
        .equ    l1_step, far % l1_bytes
        .equ    l2_step, far % l2_bytes
        .equ    l3_step, far % l3_bytes
        .equ    memory_step, 13 * line
        .equ    l1_links, l1_bytes / line
        .equ    l2_links, l2_bytes / line
        .equ    l3_links, l3_bytes / line
        .equ    memory_links, accesses

        .equ    madvise, 28
        .equ    madv_hugepage, 14
        .equ    madv_populate_write, 23

# RDX is where the pointer at RDI should lead.
        .macro  next name
        lea     \name\()_step(%rdi), %rdx
        cmp     $array + \name\()_bytes, %rdx
        jb      1f
        sub     $\name\()_bytes, %rdx
1:
        .endm

# The labels stand at the instructions that are sampled. An event of micro-operations samples the sweep, too.
        .macro  link name
        .globl  \name\()_link
        mov     $array, %edi
        mov     $\name\()_links, %ecx
2:      next    \name
\name\()_link:
        mov     %rdx, (%rdi)
        mov     %rdx, %rdi
        dec     %ecx
        jnz     2b
        .endm

        .macro  follow name
        .globl  \name\()_load, \name\()_store
        mov     $array, %edi
        mov     $accesses, %ecx
\name\()_load:
        mov     (%rdi), %rdi
        dec     %ecx
        jnz     \name\()_load
        mov     $accesses, %ecx
2:      next    \name
\name\()_store:
        mov     %rcx, 8(%rdi)
        mov     %rdx, %rdi
        dec     %ecx
        jnz     2b
        .endm

        .globl  _start
        .text
_start:
        mov     $madv_hugepage, %edx
        call    advise                  # may fail: only to be quick
        mov     $madv_populate_write, %edx
        call    advise
        test    %eax, %eax
        jnz     leave
        link    l1
        follow  l1
        link    l2
        follow  l2
        link    l3
        follow  l3
        link    memory
        mov     $sweep, %edi
        mov     $sweep_bytes / piece_bytes, %edx
        .globl  sweep_store
3:      mov     $piece_bytes / 8, %ecx
sweep_store:
        rep stosq
        dec     %edx
        jnz     3b
        follow  memory
        xor     %eax, %eax
leave:
        mov     %eax, %edi
        mov     $60, %eax               # exit
        syscall

# What RDX says of all memory.
advise:
        mov     $array, %edi
        mov     $array_bytes + sweep_bytes, %esi
        mov     $madvise, %eax
        syscall
        ret

        .bss
        .balign 2 << 20
        .type   array, @object
        .size   array, array_bytes
array:  .skip   array_bytes
sweep:  .skip   sweep_bytes
        .section .note.GNU-stack, "", @progbits
