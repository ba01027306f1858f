#pragma once
#include <unistd.h>

#include <utility>

namespace vmm {

/// An owned file descriptor; closed when the owner goes.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_{fd} {}
  Fd(Fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  /// The descriptor, still owned by this object; -1 when empty.
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  /// Gives up ownership: the caller closes it.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  /// Closes now.
  void reset() {
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));
    }
  }

 private:
  int fd_{-1};
};

/// An owned memory mapping; unmapped when the owner goes.
class Mapping {
 public:
  Mapping() = default;
  /// Takes over a mapping made with mmap.
  Mapping(void* base, std::size_t size) : base_{base}, size_{size} {}
  Mapping(Mapping&& other) noexcept
      : base_{std::exchange(other.base_, nullptr)}, size_{std::exchange(other.size_, 0)} {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  [[nodiscard]] void* base() const { return base_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  void* base_{nullptr};
  std::size_t size_{0};
};

}  // namespace vmm
