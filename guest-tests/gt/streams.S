/* Instruction sequences whose every retirement is known: see streams.hpp. */

  .set IA32_PERF_GLOBAL_CTRL, 0x38F

/* GLOBAL_CTRL = RDI; clobbers RAX, RCX, RDX. */
.macro counting_on
  mov %rdi, %rax
  mov %rdi, %rdx
  shr $32, %rdx
  mov $IA32_PERF_GLOBAL_CTRL, %ecx
  wrmsr
.endm
/* Three instructions; ECX must still hold the register's number. */
.macro counting_off
  xor %eax, %eax
  xor %edx, %edx
  wrmsr
.endm

  .text
  .globl gt_load_stream, gt_load_stream_first
gt_load_stream:
  push %rbx
  mov %rsi, %rbx
  counting_on
gt_load_stream_first:
  .rept 40
  mov (%rbx), %eax
  .endr
  counting_off
  pop %rbx
  ret

/* Counted: see the sums at the end; (L) loads, (S) stores, (B) branches. */
  .globl gt_mixed_stream
gt_mixed_stream:
  push %rbx
  mov %rsi, %rbx
  counting_on
  mov $3, %r8d                /*  1 */
1:
  add %r8, (%rbx)             /*  3 x 1  L S */
  dec %r8d                    /*  3 x 1 */
  jnz 1b                      /*  3 x 1  B cond, taken 2, not taken 1 */
  call 3f                     /*  1  S B call */
  call 3f                     /*  1  S B call; two calls, two returns (L) in all */
  jmp 2f                      /*  1  B taken */
3:
  ret                         /*  2 x 1  L B taken */
2:
  mov (%rbx), %rax            /*  1  L */
  mov %rax, 8(%rbx)           /*  1  S */
  test %rsp, %rsp             /*  1  not zero */
  jz 2b                       /*  1  B cond, not taken */
  mov $4, %r8d                /*  1 */
4:
  sub $1, %r8d                /*  4 x 1 */
  nop                         /*  4 x 1 */
  cmp $0, %r8d                /*  ... */
  jne 4b                      /*  4 x 1  B cond, taken 3, not taken 1 */
  nop
  counting_off                /*  3 */
  pop %rbx
  ret

/* x87 and SSE, with an instruction between that leaves the guest. 3 + 4 in XMM1, doubled and squared. CR4.OSFXSR must be set. */
  .globl gt_vector_stream
gt_vector_stream:
  push %rbx
  mov %rsi, %rbx
  counting_on
  fninit                      /*  1 */
  fildl (%rbx)                /*  1  L */
  fiaddl 4(%rbx)              /*  1  L */
  fistpl 8(%rbx)              /*  1  S */
  movd 8(%rbx), %xmm0         /*  1  L */
  pshufd $0, %xmm0, %xmm1     /*  1 */
  paddd %xmm1, %xmm1          /*  1 */
  cvtdq2ps %xmm1, %xmm1       /*  1 */
  mov %rbx, %r8               /*  1 */
  xor %eax, %eax              /*  1 */
  cpuid                       /*  1 */
  mov %r8, %rbx               /*  1 */
  mov $IA32_PERF_GLOBAL_CTRL, %ecx  /*  1 */
  mulps %xmm1, %xmm1          /*  1 */
  cvtps2dq %xmm1, %xmm1       /*  1 */
  movups %xmm1, 16(%rbx)      /*  1  S */
  stmxcsr 32(%rbx)            /*  1  S */
  counting_off                /*  3 */
  pop %rbx
  ret

/* RSI rounds of seven instructions, none of which is fused with another. */
  .globl gt_counted_loop, gt_counted_loop_head
gt_counted_loop:
  push %rbx
  mov %rsi, %rbx
  counting_on
gt_counted_loop_head:
  dec %rbx
  .rept 5
  mov $1, %eax
  .endr
  jnz gt_counted_loop_head
  mov $IA32_PERF_GLOBAL_CTRL, %ecx
  counting_off
  pop %rbx
  ret

/* void gt_marked_loop(iterations = RDI, load_from = RSI, store_to = RDX) */
  .globl gt_marked_loop, gt_marked_loop_head, gt_marked_loop_end
gt_marked_loop:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  movabs $0x0B0B111122223333, %rbp
  movabs $0x0808080800000008, %r8
  movabs $0x0909090900000009, %r9
  movabs $0x1010101000000010, %r10
  movabs $0x1111111100000011, %r11
  movabs $0x1212121200000012, %r12
  movabs $0x1313131300000013, %r13
  movabs $0x1414141400000014, %r14
  movabs $0x1515151500000015, %r15
  mov (%rsi), %rax
  mov $0x0C0C0C0C, %ecx
  mov $7, %ebx
  inc %rdi
  dec %rdi                    /* flags as after the loop's own DEC */
  stc
  .balign 64
gt_marked_loop_head:
  .set mark, 0
  .rept 8
  mov $mark, %ebx
  .set mark, mark + 1
  .endr
  dec %rdi
  mov (%rsi), %rax
  mov %rax, (%rdx)
  jnz gt_marked_loop_head
gt_marked_loop_end:
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret

  .section .note.GNU-stack, "", @progbits
