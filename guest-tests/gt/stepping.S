/* Code that is stepped by single-steps, or leads to handlers; see stepping.hpp. */
  .globl gt_bp_behind_mov_ss
  .globl gt_bp_behind_mov_ss_1
  .globl gt_bp_behind_sti
  .globl gt_bp_behind_sti_1
  .globl gt_branches_stepped
  .globl gt_branches_stepped_1
  .globl gt_branches_stepped_2
  .globl gt_copy_stepped
  .globl gt_copy_stepped_1
  .globl gt_copy_stepped_2
  .globl gt_copy_stepped_3
  .globl gt_de_1
  .globl gt_de_once
  .globl gt_gp_1
  .globl gt_gp_once
  .globl gt_int1_1
  .globl gt_int1_once
  .globl gt_int3_1
  .globl gt_int3_once
  .globl gt_int_n_1
  .globl gt_int_n_once
  .globl gt_int_n_stepped
  .globl gt_int_n_stepped_1
  .globl gt_int_n_stepped_2
  .globl gt_int_n_stepped_3
  .globl gt_int_n_stepped_4
  .globl gt_int_n_stepped_5
  .globl gt_int_n_stepped_6
  .globl gt_int_n_stepped_7
  .globl gt_int_n_stepped_8
  .globl gt_iret_1
  .globl gt_iret_2
  .globl gt_iret_steps
  .globl gt_mov_ss_stepped
  .globl gt_mov_ss_stepped_1
  .globl gt_mov_ss_stepped_2
  .globl gt_mov_ss_stepped_3
  .globl gt_others_stepped
  .globl gt_others_stepped_1
  .globl gt_others_stepped_10
  .globl gt_others_stepped_11
  .globl gt_others_stepped_12
  .globl gt_others_stepped_2
  .globl gt_others_stepped_3
  .globl gt_others_stepped_4
  .globl gt_others_stepped_5
  .globl gt_others_stepped_6
  .globl gt_others_stepped_7
  .globl gt_others_stepped_8
  .globl gt_popf_1
  .globl gt_popf_2
  .globl gt_popf_3
  .globl gt_popf_4
  .globl gt_popf_5
  .globl gt_popf_6
  .globl gt_popf_7
  .globl gt_popf_steps
  .globl gt_ud2_1
  .globl gt_ud2_once
  .globl gt_ud_1
  .globl gt_ud_once
  .globl gt_popf_image

  .text
gt_popf_steps:
  pushfq
  orq $0x100, (%rsp)
  popfq
  nop
gt_popf_1:
  pushfq
gt_popf_2:
  pop %rax
gt_popf_3:
  mov %rax, gt_popf_image(%rip)
gt_popf_4:
  xor $0x100, %eax
gt_popf_5:
  push %rax
gt_popf_6:
  popfq
gt_popf_7:
  nop
  ret

gt_iret_steps:
  mov %rsp, %rdx
  mov %ss, %eax
  push %rax
  push %rdx
  pushfq
  mov %cs, %eax
  push %rax
  lea gt_iret_2(%rip), %rax
  push %rax
  mov %rsp, %rdx
  mov %ss, %eax
  push %rax
  push %rdx
  pushfq
  orq $0x100, (%rsp)
  mov %cs, %eax
  push %rax
  lea 1f(%rip), %rax
  push %rax
  iretq
1:
  nop
gt_iret_1:
  iretq
gt_iret_2:
  nop
  ret

gt_int3_once:
  mov $1, %eax
  xor %ecx, %ecx
  int3
gt_int3_1:
  ret
gt_int_n_once:
  mov $1, %eax
  xor %ecx, %ecx
  int $0x80
gt_int_n_1:
  ret
gt_int1_once:
  mov $1, %eax
  xor %ecx, %ecx
  .byte 0xF1
gt_int1_1:
  ret
gt_ud2_once:
  mov $1, %eax
  xor %ecx, %ecx
gt_ud2_1:
  ud2
  ret
gt_ud_once:
  mov $1, %eax
  xor %ecx, %ecx
gt_ud_1:
  .byte 0xF0, 0x90  /* LOCK NOP */
  ret
gt_de_once:
  mov $1, %eax
  xor %ecx, %ecx
gt_de_1:
  div %ecx
  ret
gt_gp_once:
  mov $0x60, %eax  /* beyond the GDT's limit */
  xor %ecx, %ecx
gt_gp_1:
  mov %eax, %fs
  ret
gt_bp_behind_mov_ss:
  mov %ss, %eax
  xor %ecx, %ecx
  mov %eax, %ss
  int3
gt_bp_behind_mov_ss_1:
  ret
gt_bp_behind_sti:
  mov $1, %eax
  xor %ecx, %ecx
  sti
  int3
gt_bp_behind_sti_1:
  cli
  ret

gt_int_n_stepped:
  pushfq
  orq $0x100, (%rsp)
  popfq
  int $0x80
gt_int_n_stepped_1:
  nop
gt_int_n_stepped_2:
  int3
gt_int_n_stepped_3:
  mov $1, %eax
gt_int_n_stepped_4:
  ud2
gt_int_n_stepped_5:
  pushfq
gt_int_n_stepped_6:
  xorq $0x100, (%rsp)
gt_int_n_stepped_7:
  popfq
gt_int_n_stepped_8:
  ret

gt_others_stepped:  /* RDI: a counter for RDPMC, RSI: a PMU's MSR */
  push %rbx
  pushfq
  orq $0x100, (%rsp)
  popfq
  xor %eax, %eax
gt_others_stepped_1:
  cpuid
gt_others_stepped_2:
  mov $0x38F, %ecx
gt_others_stepped_3:
  rdmsr
gt_others_stepped_4:
  wrmsr
gt_others_stepped_5:
  xor %ecx, %ecx
gt_others_stepped_6:
  rdpmc
gt_others_stepped_7:
  call 1f
gt_others_stepped_8:
  jmp 2f
1:
  ret
2:
  pushfq
gt_others_stepped_10:
  xorq $0x100, (%rsp)
gt_others_stepped_11:
  popfq
gt_others_stepped_12:
  pop %rbx
  ret

gt_mov_ss_stepped:
  mov %ss, %ecx
  pushfq
  pushfq
  orq $0x100, (%rsp)
  popfq
  nop
gt_mov_ss_stepped_1:
  mov %ecx, %ss
  nop
gt_mov_ss_stepped_2:
  popfq
gt_mov_ss_stepped_3:
  ret

gt_branches_stepped:
  pushfq
  pushfq
  orq $0x100, (%rsp)
  popfq
  nop
  nop
  jmp gt_branches_stepped_1
  nop
gt_branches_stepped_1:
  popfq
gt_branches_stepped_2:
  ret

gt_copy_stepped:  /* RDI: to, RSI: from */
  mov $3, %ecx
  pushfq
  pushfq
  orq $0x100, (%rsp)
  popfq
  nop
gt_copy_stepped_1:
  rep movsb
gt_copy_stepped_2:
  popfq
gt_copy_stepped_3:
  ret

  .bss
  .balign 8
gt_popf_image:
  .skip 8

  .section .note.GNU-stack, "", @progbits
