/* Branches whose every address is known: see branches.hpp. */

  .set IA32_DEBUGCTL, 0x1D9

/* IA32_DEBUGCTL = RDI; clobbers RAX, RCX, RDX. */
.macro debugctl_on
  mov %rdi, %rax
  mov %rdi, %rdx
  shr $32, %rdx
  mov $IA32_DEBUGCTL, %ecx
  wrmsr
.endm
/* ECX must still hold the register's number. */
.macro debugctl_off
  xor %eax, %eax
  xor %edx, %edx
  wrmsr
.endm

  .text
  .globl gt_branch_kinds
  .globl gt_kind_jump, gt_kind_function, gt_kind_call, gt_kind_behind_call, gt_kind_indirect_call, gt_kind_behind_indirect_call
  .globl gt_kind_indirect_jump, gt_kind_far_return, gt_kind_behind_far_return, gt_kind_loop, gt_kind_conditional
gt_branch_kinds:
  push %rbx
  lea gt_kind_function(%rip), %r8
  lea gt_kind_far_return(%rip), %r9
  lea gt_kind_behind_far_return(%rip), %r10
  mov $3, %r11d
  xor %ebx, %ebx
  push $0x08                  /* CS of LRETQ */
  push %r10
  debugctl_on
gt_kind_jump:
  jmp gt_kind_call
  nop
gt_kind_function:
  ret
gt_kind_call:
  call gt_kind_function
gt_kind_behind_call:
  nop
gt_kind_indirect_call:
  call *%r8
gt_kind_behind_indirect_call:
  test %ebx, %ebx
  jnz gt_kind_jump            /* not taken */
gt_kind_indirect_jump:
  jmp *%r9
  nop
gt_kind_far_return:
  lretq
gt_kind_behind_far_return:
gt_kind_loop:
  dec %r11d
gt_kind_conditional:
  jnz gt_kind_loop            /* taken twice */
  debugctl_off
  pop %rbx
  ret

  .globl gt_branch_loop, gt_branch_loop_head, gt_branch_loop_branch
gt_branch_loop:
  mov %rsi, %r8
  debugctl_on
gt_branch_loop_head:
  dec %r8
gt_branch_loop_branch:
  jnz gt_branch_loop_head
  debugctl_off
  ret

  .globl gt_branch_ud2, gt_branch_ud2_at, gt_branch_ud2_behind
gt_branch_ud2:
  debugctl_on
gt_branch_ud2_at:
  ud2
gt_branch_ud2_behind:
  mov $IA32_DEBUGCTL, %ecx
  debugctl_off
  ret
  .pushsection .gt_fixups, "aw"
  .quad gt_branch_ud2_at, gt_branch_ud2_behind
  .popsection

/* Three calls deep. gt_stack_depth is called at the bottom with the LBR still on, and gt_stack_behind when all have returned. */
  .globl gt_call_stack, gt_stack_outer, gt_stack_middle, gt_stack_inner, gt_stack_zero, gt_stack_behind_zero
gt_call_stack:
  mov %rsi, %r8               /* stop here when nonzero */
  debugctl_on
gt_stack_outer:
  call 1f
  jmp 4f
1:
gt_stack_middle:
  call 2f
  ret
2:
gt_stack_zero:
  call gt_stack_behind_zero   /* a call to the next instruction */
gt_stack_behind_zero:
  pop %rax
  mov $IA32_DEBUGCTL, %ecx
gt_stack_inner:
  call 3f
  ret
3:
  test %r8, %r8
  jz 5f
  debugctl_off
5:
  ret
4:
  mov $IA32_DEBUGCTL, %ecx
  debugctl_off
  ret

  .section .note.GNU-stack, "", @progbits
