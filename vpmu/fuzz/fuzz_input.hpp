#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vpmu::fuzz {

/// The input, consumed from the front; past its end everything is 0.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_{data}, left_{size} {}
  [[nodiscard]] bool empty() const { return left_ == 0; }
  template <class T>
  T take() {
    T value{};
    const std::size_t n = left_ < sizeof value ? left_ : sizeof value;
    if (n == 0) return value;  // there may be nothing to point at
    std::memcpy(&value, data_, n);
    data_ += n;
    left_ -= n;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

/// Ends the run as a finding.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace vpmu::fuzz
