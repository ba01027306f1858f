#include "gt/streams.hpp"

namespace gt {
namespace {

std::uint64_t in_load_stream(std::uint64_t rip) {
  const std::uint64_t n = (rip - load_stream_at(1)) / load_stream_instruction_bytes;
  return n >= 1 && n <= load_stream_length && rip == load_stream_at(n + 1) ? load_stream_at(n) : 0;
}

std::uint64_t in_counted_loop(std::uint64_t rip) {
  for (std::uint64_t n = 1; n <= counted_loop_length; ++n)
    if (rip == counted_loop_at(n + 1)) return counted_loop_at(n);
  return 0;
}

std::uint64_t in_marked_loop(std::uint64_t rip) {
  if (rip == MarkedLoop::head()) return rip + MarkedLoop::branch_offset;
  for (std::uint64_t offset = 0; offset < MarkedLoop::end_offset; offset += MarkedLoop::length_at(offset))
    if (rip == MarkedLoop::head() + offset + MarkedLoop::length_at(offset)) return MarkedLoop::head() + offset;
  return 0;
}

}  // namespace

std::uint64_t instruction_before(std::uint64_t rip) {
  for (const auto find : {in_load_stream, in_counted_loop, in_marked_loop})
    if (const std::uint64_t found = find(rip); found != 0) return found;
  return 0;
}

}  // namespace gt
