#pragma once
#include <array>
#include <functional>
#include <string_view>

#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

/// A child of the process, from before it goes to jail, which keeps its rights and has nothing of the guest's: at the
/// end it does with files what the process then may not do any more. It listens to the process alone, ends with it,
/// however that ends, and can be asked for nothing else.
class Steward {
 public:
  struct Duties {
    std::function<Result<void>(std::string_view text)> write_statistics;
    std::function<Result<void>()> finish_snapshot{};  ///< The process has written it. May be empty.
    std::function<void()> clean_up;                   ///< Once, when the process has ended or asks for the end.
    std::array<int, 2> keeps{-1, -1};                 ///< Descriptors that they need; -1: none.
  };

  /// Forks. The child has no descriptor of the process but its own and Duties::keeps, and takes no signal but SIGKILL.
  /// Fails where the host gives no process.
  static Result<Steward> start(const Duties& duties);

  Steward() = default;
  Steward(Steward&&) = default;
  Steward& operator=(Steward&&) = default;
  /// As end().
  ~Steward() { end(); }

  /// Fails as Duties::write_statistics does. Waits for it.
  Result<void> write_statistics(std::string_view text);
  /// The same as Duties::finish_snapshot does.
  Result<void> finish_snapshot();
  /// Waits until everything is cleaned up. Idempotent.
  void end();

 private:
  explicit Steward(Fd to_child) : to_child_{std::move(to_child)} {}
  Result<void> ask(std::string_view message);
  Fd to_child_;
};

}  // namespace vmm
