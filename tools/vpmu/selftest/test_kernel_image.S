# The test kernels of guest-tests, in the program: a selftest needs no other file.
        .section .rodata
        .globl  vpmu_test_kernel, vpmu_test_kernel_end
        .balign 16
vpmu_test_kernel:
        .incbin TEST_KERNEL
vpmu_test_kernel_end:
        .section .note.GNU-stack, "", @progbits
