#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// The contents of a file, in memory of its own: whoever changes or shortens the file meanwhile changes nothing here. Gone with the object.
class InputFile {
 public:
  /// Larger ones are refused: nothing below 4 GiB would hold them.
  static constexpr std::uint64_t most_bytes = 2ULL << 30U;

  /// `what` names its role in messages ("kernel"). Fails with kind usage when it cannot be read, is no regular file, is empty or too large.
  static Result<InputFile> open(const std::string& path, const std::string& what);

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(mapping_.base()), mapping_.size()};
  }

 private:
  Mapping mapping_;
};

}  // namespace vmm
