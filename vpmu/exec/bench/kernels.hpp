#pragma once
#include <cstddef>
#include <cstdint>

#include "exec/state/cpu_feature.hpp"

/// The common kernel set: small programs with the instruction mixes that interpreters are judged by. Compiled to
/// position-independent code without data of its own, in a section of its own, so that the very same bytes run on this
/// CPU and in the engine.
namespace vpmu::exec::bench {

/// Bytes of zeroed memory that a kernel works in.
inline constexpr std::size_t kernel_memory = 4U << 20;

/// Repeats its work so many times and returns a checksum.
using Kernel = std::uint64_t (*)(std::byte* memory, std::uint64_t work);

struct KernelInfo {
  const char* name;
  Kernel run;
  std::uint64_t usual_work;  ///< For some 20 million instructions.
  CpuFeature feature{};      ///< That the CPU must have.
};

extern "C" {
std::uint64_t vpmu_kernel_sort(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_chase(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_matrix(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_hash(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_tree(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_machine(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_dgemm(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_fma(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_sad(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_nbody(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_x87(std::byte* memory, std::uint64_t work);
std::uint64_t vpmu_kernel_string(std::byte* memory, std::uint64_t work);
/// Where the kernels' code is.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the linker's names
extern const std::byte __start_vpmu_kernels[], __stop_vpmu_kernels[];
}

inline constexpr KernelInfo kernels[]{
    {"sort", vpmu_kernel_sort, 12},      {"chase", vpmu_kernel_chase, 1400},
    {"matrix", vpmu_kernel_matrix, 12},  {"hash", vpmu_kernel_hash, 40},
    {"tree", vpmu_kernel_tree, 24},      {"machine", vpmu_kernel_machine, 24},
    {"dgemm", vpmu_kernel_dgemm, 24},    {"fma", vpmu_kernel_fma, 48, CpuFeature::fma},
    {"sad", vpmu_kernel_sad, 160},       {"nbody", vpmu_kernel_nbody, 60},
    {"string", vpmu_kernel_string, 600}, {"x87", vpmu_kernel_x87, 1300}};

}  // namespace vpmu::exec::bench
