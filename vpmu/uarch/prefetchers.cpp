#include "uarch/prefetchers.hpp"

#include <algorithm>

namespace vpmu::uarch {

namespace off = reg::misc_feature_control;

PrefetchedLines Prefetchers::missed_l1(std::uint64_t line) {
  PrefetchedLines lines;
  const std::uint64_t page = line / lines_of_page, first_of_page = page * lines_of_page;
  const auto at = static_cast<std::int32_t>(line % lines_of_page);
  auto& set = streams_[page % sets];
  auto* const found = std::ranges::find(set, page, &Stream::page);
  const bool is_new = found == set.end();
  std::rotate(set.begin(), is_new ? set.end() - 1 : found, is_new ? set.end() : found + 1);
  Stream& stream = set.front();
  if (is_new) {
    stream = {.page = page, .last = at};
    return lines;
  }
  if (!off::L2_ADJACENT_LINE::test(off_)) lines.add(line ^ 1);
  const std::int32_t step = at - stream.last;
  stream.last = at;
  if (step == 0 || off::L2_STREAMER::test(off_)) return lines;
  const std::int32_t direction = step > 0 ? 1 : -1;
  if (direction != stream.direction) {
    stream.direction = direction;
    stream.next = at;
  }
  // What the program has come to needs no prefetch.
  if ((stream.next - at) * direction <= 0) stream.next = at + direction;
  for (int n = 0; n < requests; ++n) {
    const bool in_page = stream.next >= 0 && stream.next < lines_of_page;
    if (!in_page || (stream.next - at) * direction > max_ahead) break;
    lines.add(first_of_page + static_cast<std::uint64_t>(stream.next));
    stream.next += direction;
  }
  return lines;
}

std::optional<std::uint64_t> Prefetchers::accessed(std::uint64_t line, unsigned offset) {
  if (!watches(line)) return std::nullopt;
  Watched& w = watched_[line % watched_.size()];
  if (w.accesses == 0) w.first = offset;
  if (++w.accesses != trigger || off::DCU_NEXT_LINE::test(off_)) return std::nullopt;
  const std::uint64_t next = offset >= w.first ? line + 1 : line - 1;
  if (next / lines_of_page != line / lines_of_page) return std::nullopt;
  return next;
}

void Prefetchers::visit_state(const StateVisitor& visit) {
  visit(state_bytes(off_));
  visit(state_bytes(streams_));
  visit(state_bytes(watched_));
  for (auto& set : streams_)
    for (Stream& stream : set) {
      stream.last = std::clamp(stream.last, 0, lines_of_page - 1);
      stream.next = std::clamp(stream.next, -1, lines_of_page);
      stream.direction = std::clamp(stream.direction, -1, 1);
    }
}

}  // namespace vpmu::uarch
