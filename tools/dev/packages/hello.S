# The guest of the service that tools/dev/packages/check-service starts: says a line, and waits for interrupts that nobody sends.
        .globl  _start
_start: mov     $0x3f8, %dx
        lea     said(%rip), %rsi
1:      lodsb
        test    %al, %al
        jz      2f
        out     %al, %dx
        jmp     1b
2:      sti
        hlt
        jmp     2b
said:   .asciz  "the guest runs\n"
