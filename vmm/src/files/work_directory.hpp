#pragma once
#include <string>
#include <utility>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A new directory of the host for this process's own files, accessible to this user only. It is removed, with its
/// content, with this object. A process that is killed leaves it behind: the next create() in the same place removes
/// what no living process holds. To hold it is to have a lock (flock) on it, which the kernel gives up with the last
/// process that has the descriptor; programs that are executed do not get it.
class WorkDirectory {
 public:
  /// How each name begins.
  static constexpr auto prefix = "vpmu-work-";

  /// In `parent`; empty: where temporary files go (TMPDIR). Fails with kind host.
  static Result<WorkDirectory> create(const std::string& parent = {});
  WorkDirectory(WorkDirectory&& other) noexcept
      : path_{std::exchange(other.path_, {})}, lock_{std::move(other.lock_)} {}
  WorkDirectory& operator=(WorkDirectory&&) = delete;
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  ~WorkDirectory();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  WorkDirectory(std::string path, Fd lock) : path_{std::move(path)}, lock_{std::move(lock)} {}
  std::string path_;
  Fd lock_;
};

}  // namespace vmm
