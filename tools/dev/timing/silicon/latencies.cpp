#include "latencies.hpp"

#include <Zydis/Zydis.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <vector>

#include "timing/pipeline.hpp"

namespace vpmu::silicon {
namespace {

constexpr unsigned warm_up = 10, measured = 30;  // runs of a block of many of them

/// One operand of a form.
struct Operand {
  ZydisRegisterClass registers{};  ///< ZYDIS_REGCLASS_INVALID: an immediate.
  int number{};                    ///< 1 or 2 where the form tells registers apart.
  bool is_count{};                 ///< CL.
};

ZydisRegisterClass class_of(std::string_view name) {
  if (name == "r8") return ZYDIS_REGCLASS_GPR8;
  if (name == "r16") return ZYDIS_REGCLASS_GPR16;
  if (name == "r32") return ZYDIS_REGCLASS_GPR32;
  if (name == "r64") return ZYDIS_REGCLASS_GPR64;
  if (name == "mm") return ZYDIS_REGCLASS_MMX;
  if (name == "xmm") return ZYDIS_REGCLASS_XMM;
  if (name == "ymm") return ZYDIS_REGCLASS_YMM;
  return ZYDIS_REGCLASS_INVALID;
}

/// "r1_32" and "xmm_1" and "xmm1" have numbers; "r32" and "xmm" have none.
std::optional<Operand> operand_of(std::string text) {
  if (text == "1" || text == "imm8" || text == "im8" || text == "imm16" || text == "imm32") return Operand{};
  if (text == "cl") return Operand{.registers = ZYDIS_REGCLASS_GPR8, .is_count = true};
  Operand operand;
  const auto take_number = [&](std::size_t at, std::size_t length) {
    operand.number = text[at] - '0';
    text.erase(at - (length - 1), length);
  };
  if (text.size() > 3 && text[0] == 'r' && text[2] == '_')
    operand.number = text[1] - '0', text.erase(1, 2);
  else if (text.size() > 3 && text[text.size() - 2] == '_')
    take_number(text.size() - 1, 2);
  else if (text.size() > 2 && text[0] != 'r' && std::isdigit(static_cast<unsigned char>(text.back())) != 0)
    take_number(text.size() - 1, 1);
  operand.registers = class_of(text);
  if (operand.registers == ZYDIS_REGCLASS_INVALID) return std::nullopt;
  return operand;
}

std::optional<std::vector<Operand>> parse(std::string_view text) {
  std::vector<Operand> operands;
  std::string one;
  for (const char c : std::string{text} + ',') {
    if (c == ' ') continue;
    if (c != ',') {
      one += c;
      continue;
    }
    const auto operand = operand_of(one);
    if (!operand) return std::nullopt;
    operands.push_back(*operand);
    one.clear();
  }
  return operands;
}

std::optional<ZydisMnemonic> mnemonic_of(std::string_view name) {
  static const auto all = [] {
    std::map<std::string, ZydisMnemonic, std::less<>> by_name;
    for (int m = 1; m <= ZYDIS_MNEMONIC_MAX_VALUE; ++m)
      by_name.emplace(ZydisMnemonicGetString(static_cast<ZydisMnemonic>(m)), static_cast<ZydisMnemonic>(m));
    return by_name;
  }();
  std::string small;
  for (const char c : name) small += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto found = all.find(small);
  return found == all.end() ? std::nullopt : std::optional{found->second};
}

std::optional<std::vector<std::byte>> encode(ZydisMnemonic mnemonic, const std::vector<Operand>& operands) {
  constexpr unsigned count = 1, first = 3, second = 6;  // registers: CL, that of number 1 or none, that of number 2
  ZydisEncoderRequest request{};
  request.machine_mode = ZYDIS_MACHINE_MODE_LONG_64;
  request.mnemonic = mnemonic;
  request.operand_count = static_cast<ZyanU8>(operands.size());
  if (operands.size() > ZYDIS_ENCODER_MAX_OPERANDS) return std::nullopt;
  for (std::size_t at = 0; at < operands.size(); ++at) {
    const Operand& operand = operands[at];
    ZydisEncoderOperand& to = request.operands[at];  // NOLINT(cppcoreguidelines-pro-bounds-constant-array-index)
    if (operand.registers == ZYDIS_REGCLASS_INVALID) {
      to.type = ZYDIS_OPERAND_TYPE_IMMEDIATE;
      to.imm.u = 1;
    } else {
      to.type = ZYDIS_OPERAND_TYPE_REGISTER;
      const unsigned number = operand.is_count ? count : operand.number == 2 ? second : first;
      to.reg.value = ZydisRegisterEncode(operand.registers, static_cast<ZyanU8>(number));
    }
  }
  std::array<std::byte, ZYDIS_MAX_INSTRUCTION_LENGTH> bytes{};
  ZyanUSize length = bytes.size();
  if (!ZYAN_SUCCESS(ZydisEncoderEncodeInstruction(&request, bytes.data(), &length))) return std::nullopt;
  return std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
}

/// Whether what the first operand gets is what a source is made of.
bool is_chain(const std::vector<Operand>& operands) {
  const auto group = [](const Operand& o) {
    return o.registers == ZYDIS_REGCLASS_YMM ? ZYDIS_REGCLASS_XMM : o.registers;
  };
  const auto is_general = [](ZydisRegisterClass c) { return c >= ZYDIS_REGCLASS_GPR8 && c <= ZYDIS_REGCLASS_GPR64; };
  return std::ranges::all_of(operands, [&](const Operand& o) {
    return o.registers == ZYDIS_REGCLASS_INVALID || o.is_count || group(o) == group(operands[0]) ||
           (is_general(group(o)) && is_general(group(operands[0])));
  });
}

}  // namespace

std::optional<double> chained_latency(std::string_view instruction, std::string_view operands,
                                      const timing::Microarchitecture& on) {
  const auto mnemonic = mnemonic_of(instruction);
  const auto parsed = parse(operands);
  if (!mnemonic || !parsed || parsed->empty() || !is_chain(*parsed)) return std::nullopt;
  const auto code = encode(*mnemonic, *parsed);
  if (!code) return std::nullopt;
  const auto block = timing::timed_block(*code, on);
  if (!block || block->size() != 1 || !block->front().has_row) return std::nullopt;
  // So that all copies begin at the same place of 16 bytes.
  constexpr unsigned copies = 16;
  std::vector<timing::TimedInstruction> all;
  for (unsigned copy = 0; copy < copies; ++copy) all.push_back(block->front());
  const timing::TimedBlockPtr timed = timing::make_block(all, 0, on);
  timing::Pipeline pipeline{on};
  timing::Time warm{};
  for (unsigned run = 0; run < warm_up + measured; ++run) {
    if (run == warm_up) warm = pipeline.now();
    pipeline.retire(timed, {});
  }
  return static_cast<double>(pipeline.now() - warm) / timing::cycle / (measured * copies);
}

}  // namespace vpmu::silicon
