/* Where the second CPU begins: copied to a page below 1 MiB, in real mode, CS = page >> 4. */

  .set STARTUP_PAGE, 0x50000     /* as gt::startup_page */

  .section .rodata
  .globl gt_startup_begin, gt_startup_end, gt_startup_cr3
  .balign 16
  .code16
gt_startup_begin:
  cli
  mov %cs, %ax
  mov %ax, %ds
  mov gt_startup_cr3 - gt_startup_begin, %eax
  mov %eax, %cr3
  mov $0x20, %eax               /* CR4.PAE */
  mov %eax, %cr4
  mov $0xC0000080, %ecx         /* IA32_EFER: LME. SDM 3A 9.8.5 */
  rdmsr
  or $0x100, %eax
  wrmsr
  lgdtl startup_gdtr - gt_startup_begin
  mov $0x80010033, %eax         /* CR0: PG, WP, NE, ET, MP, PE */
  mov %eax, %cr0
  ljmpl $0x08, $gt_second_entry
  .balign 8
startup_gdt:
  .quad 0, 0x00AF9B000000FFFF, 0x00CF93000000FFFF
startup_gdtr:
  .word 23
  .long STARTUP_PAGE + startup_gdt - gt_startup_begin
gt_startup_cr3:
  .long 0
gt_startup_end:

  .text
  .code64
  .globl gt_second_entry
gt_second_entry:
  mov $0x10, %eax
  mov %eax, %ss
  mov %eax, %ds
  mov %eax, %es
  movabs $second_stack_top, %rsp
  xor %ebp, %ebp
  call gt_second_main
1:
  cli
  hlt
  jmp 1b

  .bss
  .balign 4096
  .skip 65536
second_stack_top:

  .section .note.GNU-stack, "", @progbits
