#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "support/result.hpp"
#include "test_kernel/results.hpp"

namespace vmm::tool {

/// Runs this program again, as a process for each of these argument lists, `at_once` at a time, and reports each end
/// in the order in which they end: a crash of one process is only that one's result. Fails with kind host if a process
/// cannot be started, or if a signal asks us to stop; all running ones are then killed.
Result<void> run_guests(const std::vector<std::vector<std::string>>& arguments, unsigned at_once,
                        const std::function<void(std::size_t number, const GuestEnd& end)>& ended);

/// A directory that is the root of the guests, with only the checker in it. The destructor removes it.
class CheckerRoot {
 public:
  static constexpr const char* program = "/checker";
  static Result<CheckerRoot> create();
  CheckerRoot(CheckerRoot&& other) noexcept : path_{std::exchange(other.path_, {})} {}
  CheckerRoot& operator=(CheckerRoot&&) = delete;
  ~CheckerRoot();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit CheckerRoot(std::string path) : path_{std::move(path)} {}
  std::string path_;
};

}  // namespace vmm::tool
