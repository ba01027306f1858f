/* The boot sector of L1: enters 64-bit mode and Linux, as boot_image.py has laid them out (symbols on the assembler's command line):
   PAGE_TABLES, GDT and ZERO_PAGE; KERNEL is Linux's 64-bit entry. Documentation/arch/x86/boot.rst, 64-bit boot protocol. */
        .code16
        .globl  start
start:  cli
        xor     %ax, %ax
        mov     %ax, %ds
        in      $0x92, %al              # A20
        or      $2, %al
        and     $0xFE, %al
        out     %al, $0x92
        mov     $0xFF, %al              # no interrupts of the old controllers
        out     %al, $0x21
        out     %al, $0xA1
        lgdtl   gdt
        mov     %cr0, %eax
        or      $1, %eax
        mov     %eax, %cr0
        ljmpl   $8, $protected
        .code32
protected:
        mov     $0x18, %eax
        mov     %eax, %ds
        mov     %eax, %es
        mov     %eax, %ss
        mov     $0x7000, %esp
        mov     %cr4, %eax
        or      $0x20, %eax             # PAE
        mov     %eax, %cr4
        mov     $PAGE_TABLES, %eax
        mov     %eax, %cr3
        mov     $0xC0000080, %ecx       # IA32_EFER
        rdmsr
        or      $0x100, %eax            # LME
        wrmsr
        mov     %cr0, %eax
        or      $0x80000001, %eax
        mov     %eax, %cr0
        ljmpl   $0x10, $long
        .code64
long:   mov     $ZERO_PAGE, %esi
        mov     $KERNEL, %eax
        jmp     *%rax
        .balign 4
gdt:    .word   31
        .long   GDT
        .org    510
        .word   0xAA55
