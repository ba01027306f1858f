#include <algorithm>
#include <array>

#include "decode/instruction.hpp"
#include "exec/blocks/block_arena.hpp"
#include "exec/host/host_form.hpp"
#include "exec/interpret/ops.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "fuzz_input.hpp"

// Random bytes as code for the engine's decoder and for the VMM's: instructions must follow each other without gaps, a
// block's contents must match its description, and the decoders must agree on instructions that both know. The bytes
// may end anywhere.

namespace {

using namespace vpmu;
using fuzz::require;

constexpr std::size_t max_arena_bytes = 1 << 20;
std::uint64_t instructions_decoded = 0;

/// The block's counts are those of its ops, and its ops follow each other without gaps.
void check(const exec::Block& block) {
  exec::Counts counts{};
  std::size_t at = 0;
  for (std::size_t n = 0; n + 1 < block.ops().size(); ++n) {
    const exec::Op& op = block.ops()[n];
    require(op.run != nullptr && op.length >= 1 && op.length <= 15 && op.offset == at,
            "ops stand one behind the other");
    for (const std::uint8_t reg : {op.d, op.s, op.b, op.x, op.seg})
      require(reg < sizeof(std::uint64_t) * exec::register_count, "registers are registers");
    require((op.scale & ~exec::scale_any & 0xFF) <= exec::scale_shift, "a scale is 1, 2, 4 or 8");
    counts += exec::counts_of(op);
    at += op.length;
  }
  require(at == block.code().size(), "the block's code is that of its instructions");
  require(block.ops().back().length == 0 && block.ops().back().offset == at, "its end is no instruction");
  for (unsigned n = 0; n < 4; ++n) require(counts[n] == block.counts[n], "a block counts what its instructions count");
}

/// The form that runs on the host is the same instruction, whatever prefixes the guest gave it.
void check_host_form(std::span<const std::byte> code) {
  const auto form = exec::host_form(code);
  if (!form) return;
  require(form->length >= 1 && form->length <= exec::HostForm::max_length, "it fits");
  const auto written = vmm::decode_instruction(form->instruction(), exec::CodeMode::bits64);
  require(written && written->length == form->length, "it is one instruction");
  require(
      vmm::mnemonic_of(form->instruction(), exec::CodeMode::bits64) == vmm::mnemonic_of(code, exec::CodeMode::bits64),
      "it has the same name");
  const auto& operand = written->load ? written->load : written->store;
  require(form->bytes == (operand ? operand->bytes : 0), "its operand has the same size");
}

void check_against_the_other(const exec::Block& block) {
  for (std::size_t n = 0; n + 1 < block.ops().size(); ++n) {
    const exec::Op& op = block.ops()[n];
    const auto code = block.code().subspan(op.offset);
    const auto other = vmm::decode_instruction(code, block.mode);
    require(other.has_value(), "both know the instruction");
    require(other->length == op.length, "both give it one length");
    require(vmm::mnemonic_of(code, block.mode) == other->mnemonic, "it has one name");
    ++instructions_decoded;
    if (block.mode == exec::CodeMode::bits64) check_host_form(code.first(op.length));
    if (op.run == exec::op_unsupported()) continue;
    require(other->ends_block == (other->branch != BranchKind::none), "the engine knows no HLT");
    require(!other->ends_block || n + 2 == block.ops().size(), "a branch ends its block");
    require(((op.events & exec::event_branch) != 0) == (other->branch != BranchKind::none), "both count one branch");
    require(((op.events & exec::event_load) != 0) == (other->load || other->prefetched), "both count one load");
    require(((op.events & exec::event_store) != 0) == other->store.has_value(), "both count one store");
    const auto& operand = other->load ? other->load : other->store;
    if (!operand || op.bytes == 0) continue;
    require(op.bytes == operand->bytes, "both give the operand one size");
  }
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return instructions_decoded; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  constexpr std::array modes{exec::CodeMode::bits64, exec::CodeMode::bits64, exec::CodeMode::bits32,
                             exec::CodeMode::bits16};
  const auto where = input.take<std::uint16_t>();
  const std::uint64_t rip = 0x40'0000 + where % page_size;
  std::array<std::byte, 256> code{};
  std::size_t bytes = 0;
  while (bytes < code.size() && !input.empty()) code[bytes++] = std::byte{input.take<std::uint8_t>()};
  // To the end of the page or of the input.
  const std::size_t there = std::min<std::size_t>(bytes, page_size - rip % page_size);
  const exec::CodeMode mode = modes[where / page_size % modes.size()];
  static exec::test::TestCode room;
  static exec::HostRoutines routines{&room};
  if (routines.lacked_room()) routines.clear();
  static exec::DecodedBlock decoded;
  const std::span all = std::span{code}.first(there);
  if (!decoded.decode(rip, mode, all, routines)) {
    require(!vmm::decode_instruction(all, mode), "neither knows the instruction");
    return 0;
  }
  static exec::BlockArena arena;
  if (arena.bytes() > max_arena_bytes) arena.clear();
  const exec::Block& block = arena.make(decoded, all);
  require(block.code().size() <= there, "no byte beyond those given");
  require(std::equal(block.code().begin(), block.code().end(), code.begin()), "the code is what was given");
  check(block);
  check_against_the_other(block);
  for (const exec::CodeMode width : {exec::CodeMode::bits16, exec::CodeMode::bits32})
    if (const auto i = vmm::decode_instruction(all, width)) require(i->length >= 1 && i->length <= 15, "1 to 15 bytes");
  return 0;
}
