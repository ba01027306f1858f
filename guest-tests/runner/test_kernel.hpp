#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/result.hpp"

namespace gt_runner {

/// One test of a kernel.
struct Test {
  std::size_t index{};    ///< Position in the kernel; what the guest gets in RDI.
  std::string name;       ///< "Subject.Behaviour".
  std::uint64_t needs{};  ///< gt::Need bits.
};

/// A guest test kernel: an ELF64 file with a section of gt::TestDescriptor.
class TestKernel {
 public:
  /// Reads the list of tests. Fails (kind usage) if the file cannot be read, is no ELF64 for x86-64, or has no tests.
  static vmm::Result<TestKernel> open(const std::string& path);

  [[nodiscard]] const std::vector<Test>& tests() const { return tests_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  TestKernel() = default;
  std::string path_;
  std::vector<Test> tests_;
};

}  // namespace gt_runner
