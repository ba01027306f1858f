// Stands before the kernel's <linux/stddef.h> in the include path of this library. In the headers of several kernels, Debian 12's 6.1 among
// them, __DECLARE_FLEX_ARRAY puts an empty struct before the array, which has size 1 in C++: kvm_cpuid2, kvm_msrs and others grow, the
// numbers of KVM_GET_SUPPORTED_CPUID, KVM_GET_MSRS and more change with their size, and KVM answers EINVAL.
// An array of no elements, an extension of both our compilers and what later kernels have, has no such struct, and may stand in a union.
#pragma once
#pragma GCC system_header
#include_next <linux/stddef.h>

#undef __DECLARE_FLEX_ARRAY
#define __DECLARE_FLEX_ARRAY(TYPE, NAME) TYPE NAME[0]
