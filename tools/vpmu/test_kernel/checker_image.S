# What the guests of `vpmu test-kernel` run, in the program: it needs no other file of ours.
        .section .rodata
        .globl  vpmu_kernel_checker, vpmu_kernel_checker_end
        .balign 16
vpmu_kernel_checker:
        .incbin KERNEL_CHECKER
vpmu_kernel_checker_end:
        .section .note.GNU-stack, "", @progbits
