/* Entry points: of our VMM, in 64-bit mode with memory mapped one to one; and of QEMU (PVH: a note with the address), in 32-bit protected mode
   without paging. */

  .section .note.pvh, "a", @note
  .balign 4
  .long 4, 8, 18        /* XEN_ELFNOTE_PHYS32_ENTRY */
  .asciz "Xen"
  .quad pvh_entry

  .text
  .code32
pvh_entry:
  cli
  cld
  mov $page_directory, %edi
  mov $0x83, %eax       /* present, writable, 2 MiB */
1:
  mov %eax, (%edi)
  movl $0, 4(%edi)
  add $0x200000, %eax
  add $8, %edi
  cmp $page_directory + 4096, %edi
  jb 1b
  movl $page_directory + 3, pointers
  movl $pointers + 3, page_map
  mov $page_map, %eax
  mov %eax, %cr3
  mov %cr4, %eax
  or $0x20, %eax        /* PAE */
  mov %eax, %cr4
  mov $0xC0000080, %ecx
  rdmsr
  or $0x100, %eax       /* EFER.LME */
  wrmsr
  mov %cr0, %eax
  or $0x80000001, %eax  /* PG, PE */
  mov %eax, %cr0
  lgdt gdt_register
  ljmp $8, $in_long_mode

  .code64
in_long_mode:
  mov $16, %eax
  mov %eax, %ds
  mov %eax, %es
  mov %eax, %ss

  .globl _start
_start:
  cli
  cld
  mov $stack_top, %rsp
  xor %ebp, %ebp
  call bare_main
  lidt no_idt(%rip)     /* the end: a triple fault */
  int3

/* #GP of an RDMSR: two bytes on, and remembered. */
  .globl bare_on_gp
bare_on_gp:
  movb $1, bare_faulted(%rip)
  addq $2, 8(%rsp)
  add $8, %rsp
  iretq

  .data
  .balign 8
gdt:
  .quad 0, 0x00AF9B000000FFFF, 0x00CF93000000FFFF
gdt_register:
  .word gdt_register - gdt - 1
  .quad gdt
no_idt:
  .word 0
  .quad 0

  .bss
  .balign 4096
page_directory:
  .skip 4096
pointers:
  .skip 4096
page_map:
  .skip 4096
  .skip 16384
stack_top:
  .section .note.GNU-stack, "", @progbits
