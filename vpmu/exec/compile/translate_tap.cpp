#include "exec/compile/translator.hpp"
#include "exec/observe/tap.hpp"

/// What compiled code writes for an observer: see tap.hpp.
namespace vpmu::exec {

Translator::Accesses Translator::accesses_of(std::size_t i) const {
  const GuestForm& f = forms_[i];
  const Op& op = block_.ops()[i];
  const unsigned does = op.events & (event_load | event_store);
  const auto access = [&](bool store, std::uint64_t bytes, bool last) {
    const unsigned loads = (does & event_load) != 0 ? Seen::op_loads : 0;
    const unsigned stores = (does & event_store) != 0 ? Seen::op_stores : 0;
    return BlockAccess{
        .instruction = static_cast<std::uint8_t>(i),
        .flags = static_cast<std::uint8_t>((store ? Seen::store : 0) | (last ? Seen::retires | loads | stores : 0)),
        .both = false,
        .bytes = static_cast<std::uint16_t>(bytes)};
  };
  const auto one = [&](std::uint64_t bytes) {
    Accesses a{.list = {access((does & event_store) != 0, bytes, true)}, .count = 1, .are_known = true};
    a.list[0].both = does == (event_load | event_store);
    return a;
  };
  if (f.kind <= Kind::alone) return {.are_known = true};
  if (f.kind == Kind::leave || (op.events & event_at_stack) != 0) return one(word);
  if (f.kind == Kind::call_indirect)
    return {.list = {access(false, word, false), access(true, word, true)}, .count = 2, .are_known = true};
  if (f.memory && (op.events & event_at_operand) != 0) return one(op.bytes);
  return {.are_known = !f.memory && does == 0};
}

void Translator::leave_to_interpreter_what_cannot_be_noted() {
  for (std::size_t i = 0; i < count_; ++i)
    if (!accesses_of(i).are_known) forms_[i].kind = forms_[i].is_flow() ? Kind::interpreted : Kind::alone;
}

void Translator::note_accesses() {
  std::vector<BlockAccess>& all = block_.observed->accesses;
  all.clear();
  for (std::size_t i = 0; i < length_; ++i) {
    const Accesses a = accesses_of(i);
    all.insert(all.end(), a.list.begin(), a.list.begin() + static_cast<std::ptrdiff_t>(a.count));
  }
  block_.observed->seen.accesses = all;
}

/// The block, and room for the addresses of all accesses.
void Translator::log_entry() {
  const auto advance = [this](std::int32_t log, std::size_t by) {
    a_.lea(scratch_d, scratch_d, none, 0, static_cast<std::int32_t>(by * word));
    a_.mov({core_base, log}, scratch_d);
  };
  constexpr std::int32_t blocks = in_state(offsetof(CompiledState, logged_blocks));
  constexpr std::int32_t addresses = in_state(offsetof(CompiledState, logged_addresses));
  a_.mov(scratch_d, {core_base, blocks});
  a_.mov_constant(scratch_c, reinterpret_cast<std::uintptr_t>(&block_.observed->seen));
  a_.mov({scratch_d, 0}, scratch_c);
  advance(blocks, 1);
  if (block_.observed->seen.accesses.empty()) return;
  a_.mov(scratch_d, {core_base, addresses});
  advance(addresses, block_.observed->seen.accesses.size());
}

void Translator::log_access(HostRegister at) {
  const auto still_to_come = static_cast<std::int32_t>(block_.observed->seen.accesses.size() - logged_);
  if (still_to_come == 0) return a_.spoil();
  ++logged_;
  a_.mov(scratch_c, {core_base, in_state(offsetof(CompiledState, logged_addresses))});
  a_.mov({scratch_c, -stack_word * still_to_come}, at);
}

}  // namespace vpmu::exec
