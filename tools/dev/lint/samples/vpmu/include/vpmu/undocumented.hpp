#pragma once

int undocumented();
namespace vpmu {
/// Its data needs no more than this comment.
struct Documented {
  int member();
  int data;
  friend bool operator==(const Documented&, const Documented&) = default;
};
/// Has a command that there is not: \nothing.
inline constexpr int first = 1;
inline constexpr int second = 2;
}  // namespace vpmu
