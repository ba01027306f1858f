# Loops whose cycles on a CPU are known: ../tests/time_soft_test.py has them, with their sources. `timed LOOP ROUNDS` runs one of them so often; with 0 it
# only makes its data. Each round of a loop does 8 times what it is about, if its line does not say otherwise. RDI is its pointer, ECX counts. No library.
        .equ    line, 64
        .equ    page, 4096
        .equ    all_bytes, 18 << 20
        .equ    exit, 60
        .equ    madvise, 28
        .equ    madv_hugepage, 14
        .equ    madv_nohugepage, 15

# A loop of this name. What follows, up to its `ret`, has ROUNDS in ECX; `prepared` is run before it: prepare_chain with the chain's size in RSI, and so on.
        .macro  timed name, prepared=prepare_nothing, bytes=0
        .section .rodata
1:      .asciz  "\name"
        .section .data.rel.ro, "aw"
        .quad   1b, \prepared, \bytes, loop_\name
        .text
        .balign 64
        .globl  loop_\name
loop_\name:
        .endm

        .macro  again name
        dec     %ecx
        jnz     loop_\name
        .globl  end_\name
end_\name:
        ret
        .endm

        .section .data.rel.ro, "aw"
loops:
        .text
        .globl  _start
_start:
        mov     16(%rsp), %rbp          # LOOP
        mov     24(%rsp), %rsi          # ROUNDS, in decimal
        xor     %r12d, %r12d
1:      movzbl  (%rsi), %eax
        sub     $'0', %eax
        js      2f
        imul    $10, %r12, %r12
        add     %rax, %r12
        inc     %rsi
        jmp     1b
2:      lea     loops(%rip), %rbx
3:      mov     (%rbx), %rsi
        test    %rsi, %rsi
        jz      leave                   # no loop of this name: exit code 2
        mov     %rbp, %rdi
4:      mov     (%rsi), %al
        cmp     (%rdi), %al
        jne     5f
        inc     %rsi
        inc     %rdi
        test    %al, %al
        jnz     4b
        mov     16(%rbx), %rsi
        lea     memory(%rip), %rdi
        call    *8(%rbx)
        mov     %r12, %rcx
        lea     memory(%rip), %rdi
        xor     %edx, %edx
        mov     $1, %eax
        mov     %rax, %r8
        test    %ecx, %ecx
        jz      6f
        call    *24(%rbx)
6:      xor     %edi, %edi
        mov     $exit, %eax
        syscall
5:      add     $32, %rbx
        jmp     3b
leave:  mov     $2, %edi
        mov     $exit, %eax
        syscall

prepare_nothing:
        movb    $1, page(%rdi)          # no page of it is made in the loop
        movb    $1, (%rdi)
        ret


# Each line of RSI bytes points to the one 67 lines behind it, and so a chain goes through all of them, as 67 is no divisor of their number. Each is in
# another page of 4 KiB than the one before, where no prefetcher expects it. In
# large pages, so that no TLB misses, and that the lines are spread over the sets of a cache.
        .equ    step, 67 * line
prepare_chain:
        mov     $madv_hugepage, %edx
        call    advise
link_chain:
        mov     %rsi, %rcx
        shr     $6, %rcx
        lea     (%rdi, %rsi), %r10
1:      lea     step(%rdi), %rdx
        cmp     %r10, %rdx
        jb      2f
        sub     %rsi, %rdx
2:      mov     %rdx, (%rdi)
        mov     %rdx, %rdi
        dec     %ecx
        jnz     1b
        ret

# The same, and no cache has any of it. Nor has one when the chain is made, whatever the kernel did to these pages before: so that takes as long each time.
prepare_memory:
        mov     $madv_hugepage, %edx
in_pages:                               # EDX
        call    advise
        lea     (%rdi, %rsi), %rdx
1:      movb    $0, (%rdi)
        add     $page, %rdi
        cmp     %rdx, %rdi
        jb      1b
        call    flush
        call    link_chain
flush:
        lea     memory(%rip), %rdi
        mov     %rsi, %rcx
        shr     $6, %rcx
1:      clflush (%rdi)
        add     $line, %rdi
        dec     %ecx
        jnz     1b
        mfence
        lea     memory(%rip), %rdi
        ret

# The same in pages of 4 KiB, of which no TLB has so many: each access is a page walk.
prepare_walks:
        mov     $madv_nohugepage, %edx
        jmp     in_pages

advise:                                 # EDX
        push    %rsi
        mov     $all_bytes, %esi
        mov     $madvise, %eax
        syscall
        pop     %rsi
        ret

# A pointer to itself, and another 4 KiB and 4 KiB + 64 behind it.
prepare_pointer:
        mov     %rdi, (%rdi)
        mov     %rdi, page(%rdi)
        mov     %rdi, page + line(%rdi)
        ret

        timed   adds
        .rept   8
        add     $1, %rax
        .endr
        again   adds

        timed   multiplications
        .rept   8
        imul    %rax, %rax
        .endr
        again   multiplications

        timed   shifts
        .irp    to, %rax, %rdx, %rsi, %r8, %r9, %r10, %r11, %r13, %r14, %rax, %rdx
        shl     $3, \to
        .endr
        again   shifts

        timed   division_chain
        xor     %edx, %edx
        div     %r8
        or      %rdx, %rax
        again   division_chain

        timed   loads
        .irp    to, %rax, %rdx, %rsi, %r8, %r9, %r10, %r11, %r13
        mov     8(%rdi), \to
        .endr
        again   loads

        timed   stores
        .irp    from, %rax, %rdx, %rsi, %r8, %r9, %r10, %r11, %r13
        mov     \from, 8(%rdi)
        .endr
        again   stores

# 7 additions and the branch: 8 fused micro-operations.
        timed   issue
        .irp    to, %rax, %rdx, %rsi, %r8, %r9, %r10, %r11
        nop
        .endr
        again   issue

# Instructions of 10 bytes, 16 of them in 5 windows of 32 bytes; 10 windows, and one more with the branch.
        timed   windows
        .rept   4
        .irp    to, %rax, %rdx, %rsi, %r8, %r9, %r10, %r11, %r13
        movabs  $1, \to
        .endr
        .endr
        again   windows

# 24 KiB of instructions of 8 bytes: more than the micro-op cache holds.
        timed   decoding
        .rept   3072
        .byte   0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0
        .endr
        again   decoding

# 20 KiB of instructions of 10 bytes.
        timed   constants
        .rept   256
        .irp    to, %rax, %rdx, %rsi, %r8, %r9, %r10, %r11, %r13
        movabs  $1, \to
        .endr
        .endr
        again   constants

# 1 MiB of instructions of 8 bytes.
        timed   footprint
        .rept   131072
        .byte   0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0
        .endr
        again   footprint

        timed   divisions
        .rept   8
        xor     %edx, %edx
        div     %r8
        or      %rdx, %rax              # the dividend depends on both results
        .endr
        again   divisions

        timed   forwarding, prepare_pointer
        .rept   8
        mov     %rdi, (%rdi)
        mov     (%rdi), %rdi
        .endr
        again   forwarding

# The store is of one byte, the load of eight.
        timed   blocked, prepare_pointer
        .rept   8
        mov     %dil, (%rdi)
        mov     (%rdi), %rdi
        .endr
        again   blocked

        timed   aliased, prepare_pointer
        .rept   8
        mov     %rdi, page(%rdi)
        mov     (%rdi), %rdi
        .endr
        again   aliased

# The same, a line further.
        timed   unaliased, prepare_pointer
        .rept   8
        mov     %rdi, page + line(%rdi)
        mov     (%rdi), %rdi
        .endr
        again   unaliased

# One branch for each round, which waits for a number that a linear congruential generator makes (Knuth's MMIX): taken half of the time.
        .macro  branches name, test
        timed   \name
        mov     $6364136223846793005, %r9
        mov     $1442695040888963407, %r10
1:      imul    %r9, %rax
        add     %r10, %rax
        \test
        js      2f
        .globl  behind_\name, end_\name
behind_\name:
        nop
2:      dec     %ecx
        jnz     1b
end_\name:
        ret
        .endm
        branches random, "test %rax, %rax"
        branches foreseen, "test %r9, %r9"

        .macro  chase name, bytes, prepared=prepare_chain
        timed   chase_\name, \prepared, \bytes
        .rept   8
        mov     (%rdi), %rdi
        .endr
        again   chase_\name
        .endm
        chase   l1, 16 << 10
        chase   l2, 128 << 10
        chase   l3, 2 << 20
        chase   memory, 16 << 20, prepare_memory
        timed   walks, prepare_walks, 16 << 20
        .rept   8
        mov     (%rdi), %rdi
        .endr
        again   walks

# Lines of memory, none of which waits for another.
        timed   overlapped, prepare_memory, 16 << 20
        .irp    to, 0, 1, 2, 3, 4, 5, 6, 7
        mov     \to * step(%rdi), %rax
        .endr
        add     $8 * step, %rdi
        mov     %rdi, %r9               # behind the last line it goes on with others
        sub     %rsi, %r9
        cmp     %r10, %rdi
        cmovae  %r9, %rdi
        again   overlapped

# Lines of memory, one behind the other.
        timed   stream, prepare_memory, 16 << 20
        .irp    to, 0, 1, 2, 3, 4, 5, 6, 7
        mov     \to * line(%rdi), %rax
        .endr
        add     $8 * line, %rdi
        mov     %rdi, %r9
        sub     %rsi, %r9
        cmp     %r10, %rdi
        cmovae  %r9, %rdi
        again   stream

# For samples, each with what a CPU waits for under a label of its own. Other instructions stand around it.
        .macro  beside
        add     $1, %r9
        lea     1(%r10), %r10
        xor     %r9, %r10
        .endm

        timed   division
        beside
        xor     %edx, %edx
        .globl  at_division
at_division:
        div     %r8
        beside
        again   division

        timed   miss, prepare_chain, 16 << 20
        beside
        .globl  at_miss
at_miss:
        mov     (%rdi), %rdi
        beside
        again   miss

        .section .data.rel.ro, "aw"
        .quad   0
        .bss
        .balign 2 << 20
        .type   memory, @object
        .size   memory, all_bytes
memory: .skip   all_bytes
        .section .note.GNU-stack, "", @progbits
