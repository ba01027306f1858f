#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "files/work_directory.hpp"
#include "support/result.hpp"
#include "test_kernel/results.hpp"

namespace vmm::tool {

/// Runs this program again, as a process for each of these argument lists, `at_once` at a time, and reports each end
/// in the order in which they end: a crash of one process is only that one's result. Fails with kind host if a process
/// cannot be started, or if a signal asks us to stop; all running ones are then killed.
Result<void> run_guests(const std::vector<std::vector<std::string>>& arguments, unsigned at_once,
                        const std::function<void(std::size_t number, const GuestEnd& end)>& ended);

/// A directory that is the root of the guests, with only the checker in it. It is removed with this object.
class CheckerRoot {
 public:
  static constexpr const char* program = "/checker";
  static Result<CheckerRoot> create();
  [[nodiscard]] const std::string& path() const { return directory_.path(); }

 private:
  explicit CheckerRoot(WorkDirectory directory) : directory_{std::move(directory)} {}
  WorkDirectory directory_;
};

}  // namespace vmm::tool
