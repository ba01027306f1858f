constexpr unsigned long rflags_tf = 1UL << 8;
namespace cr0 {}
