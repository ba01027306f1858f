#pragma once
#include <array>
#include <functional>
#include <string_view>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A child that the process forks before it enters the jail. The child keeps the process's rights and has nothing of
/// the guest's: at the end it does with files what the jailed process may no longer do. It takes requests for its
/// duties only, from this process only, and ends with it, however the process ends.
class Steward {
 public:
  struct Duties {
    std::function<Result<void>(std::string_view text)> write_statistics;
    std::function<Result<void>()> finish_snapshot{};  ///< The process has written the file. May be empty.
    std::function<void()> clean_up;                   ///< Once, when the process has ended or asks for the end.
    std::array<int, 2> keeps{-1, -1};                 ///< Descriptors that the duties need; -1: none.
  };

  /// Forks. Of the process's descriptors the child keeps only Duties::keeps and its own socket. It blocks all signals
  /// that it can. Fails if the host cannot create a process.
  static Result<Steward> start(const Duties& duties);

  Steward() = default;
  Steward(Steward&&) = default;
  Steward& operator=(Steward&&) = default;
  /// As end().
  ~Steward() { end(); }

  /// Has the child call Duties::write_statistics; waits for its result and returns that.
  Result<void> write_statistics(std::string_view text);
  /// The same for Duties::finish_snapshot.
  Result<void> finish_snapshot();
  /// Waits until everything is cleaned up. Idempotent.
  void end();

 private:
  explicit Steward(Fd to_child) : to_child_{std::move(to_child)} {}
  Result<void> ask(std::string_view message);
  Fd to_child_;
};

}  // namespace vmm
