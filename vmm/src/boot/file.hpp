#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A file mapped for reading, so that loading copies it once and keeps nothing resident.
class InputFile {
 public:
  /// `what` names its role in messages ("kernel"). Fails with kind usage when it cannot be opened, is no regular file or is empty.
  static Result<InputFile> open(const std::string& path, const std::string& what);

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(mapping_.base()), mapping_.size()};
  }

 private:
  Mapping mapping_;
};

}  // namespace vmm
