# The init of `vpmu exec`'s guest, in the program: exec needs no other file of ours.
        .section .rodata
        .globl  vpmu_exec_init, vpmu_exec_init_end
        .balign 16
vpmu_exec_init:
        .incbin EXEC_INIT
vpmu_exec_init_end:
        .section .note.GNU-stack, "", @progbits
