/* Entry point, vector stubs and the way to CPL 3 and back. */

  .section .text.start, "ax"
  .globl gt_start
gt_start:
  cli
  cld
  movabs $gt_stack_top, %rsp
  xor %ebp, %ebp
  call gt_main          /* RDI = test index, RSI = flags, as the host set them */
1:
  cli
  hlt
  jmp 1b

  .text

/* 256 stubs of 16 bytes. Each leaves the frame {vector, error code} that gt::InterruptFrame describes. */
  .balign 16
  .globl gt_vector_stubs
gt_vector_stubs:
  .set vector, 0
  .rept 256
  .balign 16
  .if !(vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21)
  push $0
  .endif
  push $vector
  jmp interrupt_entry
  .set vector, vector + 1
  .endr

interrupt_entry:
  push %rax
  push %rbx
  push %rcx
  push %rdx
  push %rsi
  push %rdi
  push %rbp
  push %r8
  push %r9
  push %r10
  push %r11
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, %rdi
  cld
  call gt_interrupt
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %r11
  pop %r10
  pop %r9
  pop %r8
  pop %rbp
  pop %rdi
  pop %rsi
  pop %rdx
  pop %rcx
  pop %rbx
  pop %rax
  add $16, %rsp
  iretq

/* void gt_enter_user(void (*function)(void*), void* argument, uint64_t user_stack):
   calls function(argument) at CPL 3 with interrupts off. */
  .globl gt_enter_user
gt_enter_user:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, gt_kernel_rsp(%rip)
  mov %rsp, gt_tss+4(%rip)     /* RSP0: interrupts at CPL 3 push below what must survive */
  mov %rdi, %rax
  mov %rsi, %rdi
  push $0x1b            /* user SS */
  push %rdx
  push $0x2
  push $0x23            /* user CS */
  lea gt_user_trampoline(%rip), %rdx
  push %rdx
  iretq
gt_user_trampoline:
  call *%rax
/* Ends the stay at CPL 3: the #UD handler goes on at gt_user_left with the stack of gt_kernel_rsp. */
  .globl gt_user_trampoline, gt_user_done, gt_user_left, gt_kernel_rsp
gt_user_done:
  ud2
gt_user_left:
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret

  .bss
  .balign 16
gt_kernel_rsp:
  .skip 8
  .balign 4096
  .skip 65536
gt_stack_top:

  .section .note.GNU-stack, "", @progbits
