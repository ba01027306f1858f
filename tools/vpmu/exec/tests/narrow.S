# A 32-bit program without a library: says what works, a line each. With an argument it runs a loop of four instructions 100,000 times before.
  .globl _start
  .text
_start:
  mov %esp, %ebp
  cmpl $1, (%ebp)
  je enter_kernel
  mov $100000, %ecx
loop:
  push %ecx
  pop %ecx
  dec %ecx
  jnz loop

enter_kernel:                   # by INT 80H, and by what the vDSO has, which is SYSENTER on Intel's
  lea 4(%ebp), %esi
1:
  lodsl                         # arguments
  test %eax, %eax
  jnz 1b
1:
  lodsl                         # environment
  test %eax, %eax
  jnz 1b
1:
  lodsl                         # AT_SYSINFO
  mov (%esi), %ebx
  add $4, %esi
  test %eax, %eax
  jz thread_area
  cmp $32, %eax
  jne 1b
  mov $20, %eax                 # getpid
  call *%ebx
  mov %eax, %edi
  mov $20, %eax
  int $0x80
  cmp %eax, %edi
  jne thread_area
  mov $kernel, %ecx
  call say

thread_area:                    # a segment with a base
  mov $243, %eax                # set_thread_area
  mov $area, %ebx
  int $0x80
  mov area, %eax
  shl $3, %eax
  or $3, %eax
  mov %eax, %gs
  mov $8, %edx
  cmpl $0x13579BDF, %gs:-4(%edx)
  jne floating
  mov $segment, %ecx
  call say

floating:
  fldpi
  fmull two
  fistpl result
  cvtsi2sd result, %xmm1
  addsd two, %xmm1
  cvttsd2si %xmm1, %eax
  cmp $8, %eax
  jne wide
  mov $numbers, %ecx
  call say

wide:                           # 64-bit code, and back
  lcall $0x33, $code64
  cmp $0x11223344, %eax
  jne done
  mov $far, %ecx
  call say
done:
  mov $1, %eax
  mov $7, %ebx
  int $0x80

say:                            # what stands at ECX, 16 bytes
  mov $4, %eax
  mov $1, %ebx
  mov $16, %edx
  int $0x80
  ret

  .code64
code64:
  movabs $0x1122334455667788, %rax
  shr $32, %rax
  lretl
  .code32

  .data
kernel: .ascii "system calls    "
segment: .ascii "segments        "
numbers: .ascii "floating point  "
far: .ascii "far calls      \n"
  .balign 8
two: .double 2
result: .long 0
thread: .long 0, 0x13579BDF
area: .long -1, thread, 0xFFFFF, 0x51    # of 32 bits, in pages, usable
