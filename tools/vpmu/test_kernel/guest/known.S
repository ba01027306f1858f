# What the checker counts and samples: code whose every step is known.

        .set    ioctl, 16               # the system call
        .set    enable, 0x2400          # PERF_EVENT_IOC_ENABLE and _DISABLE
        .set    disable, 0x2401
        .set    group, 1                # PERF_IOC_FLAG_GROUP

        .text
# void vpmu_known_loop(int group_leader, unsigned rounds, uint64_t memory[2]): lets the group count, and runs 5 * rounds + 4
# instructions in user mode, rounds + 1 of them branches (SYSCALL is a far one): from known_first to the last SYSCALL.
        .globl  vpmu_known_loop, vpmu_known_first, vpmu_known_load, vpmu_known_store, vpmu_known_jump, vpmu_known_last
vpmu_known_loop:
        mov     %esi, %r8d
        mov     %rdx, %r9
        mov     $enable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
vpmu_known_first:
        mov     %r8d, %r10d
vpmu_known_load:
        mov     (%r9), %rax
        inc     %rax
        dec     %r10d                   # not before its branch, with which it would be one
vpmu_known_store:
        mov     %rax, 8(%r9)
vpmu_known_jump:
        jnz     vpmu_known_load
vpmu_known_last:
        mov     $disable, %esi
        mov     $ioctl, %eax
        syscall
        ret

# uint64_t vpmu_known_walk(int group_leader, const void* memory, unsigned lines, unsigned step): loads from each of so many lines of a cache, a power of
# two, while the group counts: each so many lines behind the one before, an odd number, and from the beginning again.
        .globl  vpmu_known_walk
vpmu_known_walk:
        mov     %rsi, %r9
        mov     %edx, %r8d
        mov     %ecx, %r10d
        shl     $6, %r10
        mov     $enable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
        mov     %r8, %r11
        shl     $6, %r11
        dec     %r11
        xor     %ecx, %ecx
1:      mov     (%r9,%rcx), %rax
        add     %r10, %rcx
        and     %r11, %rcx
        dec     %r8d
        jnz     1b
        mov     $disable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
        ret

# void vpmu_known_calls(int group_leader, unsigned rounds): calls vpmu_known_outer, which makes a call that returns at once, and then calls
# vpmu_known_inner, which goes round, while the group counts.
        .globl  vpmu_known_calls, vpmu_known_outer_call, vpmu_known_outer, vpmu_known_inner_call, vpmu_known_inner, vpmu_known_inner_end
vpmu_known_calls:
        mov     %esi, %r8d
        mov     $enable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
vpmu_known_outer_call:
        call    vpmu_known_outer
        mov     $disable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
        ret
vpmu_known_outer:
        call    1f
vpmu_known_inner_call:
        call    vpmu_known_inner
1:      ret
vpmu_known_inner:
        dec     %r8d
        jnz     vpmu_known_inner
vpmu_known_inner_end:
        ret

# void vpmu_known_frames(int group_leader, unsigned rounds): calls vpmu_known_framed, which goes round, while the group counts. Both keep their
# caller's frame pointer, as the kernel expects it where it looks for callers.
        .globl  vpmu_known_frames, vpmu_known_frame_call, vpmu_known_frame_return, vpmu_known_framed, vpmu_known_framed_end
vpmu_known_frames:
        push    %rbp
        mov     %rsp, %rbp
        mov     %esi, %r8d
        mov     $enable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
vpmu_known_frame_call:
        call    vpmu_known_framed
vpmu_known_frame_return:
        mov     $disable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
        pop     %rbp
        ret
vpmu_known_framed:
        push    %rbp
        mov     %rsp, %rbp
1:      dec     %r8d
        jnz     1b
vpmu_known_framed_end:
        pop     %rbp
        ret

# void vpmu_known_lines(int group_leader, unsigned rounds): runs through vpmu_known_line_count lines of code, `rounds` times, while the
# group counts. Each line is one branch to the next one. They are more than any first-level cache of instructions has.
        .set    line_count, 1024
        .globl  vpmu_known_lines, vpmu_known_lines_begin, vpmu_known_lines_end
vpmu_known_lines:
        mov     %esi, %r8d
        mov     $enable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
1:      call    vpmu_known_lines_begin
        dec     %r8d
        jnz     1b
        mov     $disable, %esi
        mov     $group, %edx
        mov     $ioctl, %eax
        syscall
        ret

        .balign 4096
vpmu_known_lines_begin:
        .rept   line_count
        jmp     2f
        .balign 64
2:
        .endr
vpmu_known_lines_end:
        ret
        .section .note.GNU-stack, "", @progbits
