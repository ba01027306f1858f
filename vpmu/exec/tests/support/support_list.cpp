#include <Zydis/Zydis.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "exec/decode/decoded_block.hpp"
#include "exec/decode/instruction.hpp"
#include "exec/interpret/ops.hpp"

// Writes vpmu/exec/support.md: which instructions of 64-bit code the engine runs, found by asking its decoder for every
// opcode with every prefix that belongs to it, with registers and with memory.
//
//   vpmu_exec_support            prints it
//   vpmu_exec_support FILE       compares FILE with it

namespace {

using namespace vpmu;

/// The forms of one mnemonic.
struct Forms {
  std::string set;  ///< The instruction set extension that it is from.
  std::set<std::string> known, left;
  bool hosts_own{};  ///< Some form is run as the host's own instruction.
};
using Table = std::map<std::string, Forms>;

std::string operand_text(const ZydisDecodedOperand& o) {
  switch (o.type) {
    case ZYDIS_OPERAND_TYPE_IMMEDIATE: return "imm";
    case ZYDIS_OPERAND_TYPE_POINTER: return "ptr";
    case ZYDIS_OPERAND_TYPE_MEMORY: return "m" + std::to_string(o.size);
    default: break;
  }
  switch (ZydisRegisterGetClass(o.reg.value)) {
    case ZYDIS_REGCLASS_GPR8:
    case ZYDIS_REGCLASS_GPR16:
    case ZYDIS_REGCLASS_GPR32:
    case ZYDIS_REGCLASS_GPR64: return "r" + std::to_string(o.size);
    case ZYDIS_REGCLASS_XMM: return "xmm";
    case ZYDIS_REGCLASS_YMM: return "ymm";
    case ZYDIS_REGCLASS_MMX: return "mm";
    case ZYDIS_REGCLASS_X87: return "st";
    case ZYDIS_REGCLASS_CONTROL: return ZydisRegisterGetString(o.reg.value);
    case ZYDIS_REGCLASS_DEBUG: return "dr";
    case ZYDIS_REGCLASS_SEGMENT: return "sreg";
    default: return "reg";
  }
}

std::string form_of(const ZydisDecodedInstruction& in,
                    const std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT>& operands) {
  std::string text;
  const auto shown = std::span{operands}.first(in.operand_count_visible);
  const bool has_16 =
      std::ranges::any_of(shown, [](const auto& o) { return o.type != ZYDIS_OPERAND_TYPE_IMMEDIATE && o.size == 16; });
  if (in.operand_width == 16 && !has_16) text = "16-bit ";
  if ((in.attributes & ZYDIS_ATTRIB_HAS_LOCK) != 0) text += "lock ";
  if ((in.attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE)) != 0) text += "rep ";
  if ((in.attributes & ZYDIS_ATTRIB_HAS_REPNE) != 0) text += "repne ";
  if (in.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR) text += "far ";
  for (unsigned i = 0; i < in.operand_count_visible; ++i) text += (i == 0 ? "" : ", ") + operand_text(operands[i]);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text.empty() ? "plain" : text;
}

/// Decodes `code` with both decoders.
void ask(Table& table, std::vector<unsigned> code) {
  code.resize(code.size() + 12, 1);
  std::vector<std::byte> bytes;
  for (const unsigned b : code) bytes.push_back(std::byte(static_cast<unsigned char>(b)));
  exec::DecodedInstruction i;
  if (!exec::read_instruction(bytes, exec::CodeMode::bits64, i)) return;
  const ZydisDecodedInstruction& in = i.in;
  bytes.resize(in.length);
  const bool hosts_own = exec::host_form(bytes).has_value();
  exec::HostRoutines none{nullptr};
  static exec::DecodedBlock block;
  const bool known = hosts_own || (block.decode(0, exec::CodeMode::bits64, bytes, none) &&
                                   block.ops().front().run != exec::op_unsupported());
  Forms& forms = table[ZydisMnemonicGetString(in.mnemonic)];
  forms.set = ZydisISAExtGetString(in.meta.isa_ext);
  forms.hosts_own = forms.hosts_own || hosts_own;
  (known ? forms.known : forms.left).insert(form_of(in, i.all_operands));
}

/// Asks for `before` with each ModRM byte that matters: /0 to /7 with memory, and with all registers, since some
/// opcodes have a meaning for each.
void ask_operands(Table& table, const std::vector<unsigned>& before) {
  constexpr unsigned of_rbx = 3, with_index = 4;  // gathers have no other
  for (unsigned reg = 0; reg < 8; ++reg) {
    auto code = before;
    for (const unsigned rm : {of_rbx, with_index}) {
      code.push_back(reg << 3 | rm);
      ask(table, code);
      code.pop_back();
    }
    code.push_back(0);
    for (unsigned rm = 0; rm < 8; ++rm) {
      code.back() = 0xC0 | reg << 3 | rm;
      ask(table, code);
    }
  }
}

/// Whether the byte is a prefix or the escape to another map, and so no opcode of the first map.
bool is_no_opcode(unsigned byte) {
  constexpr std::array others{0x0FU, 0x26U, 0x2EU, 0x36U, 0x3EU, 0x62U, 0x64U, 0x65U,
                              0x66U, 0x67U, 0xC4U, 0xC5U, 0xF0U, 0xF2U, 0xF3U};
  return (byte & 0xF0) == 0x40 || std::ranges::find(others, byte) != others.end();
}

void ask_legacy(Table& table) {
  static const std::array<std::vector<unsigned>, 4> maps{{{}, {0x0F}, {0x0F, 0x38}, {0x0F, 0x3A}}};
  static const std::array<std::vector<unsigned>, 6> prefixes{{{}, {0x66}, {0xF2}, {0xF3}, {0xF0}, {0xF0, 0x66}}};
  for (const auto& prefix : prefixes)
    for (const unsigned rex : {0U, 0x48U})
      for (const auto& map : maps)
        for (unsigned opcode = 0; opcode < 256; ++opcode) {
          if (map.empty() && is_no_opcode(opcode)) continue;
          std::vector<unsigned> code = prefix;
          if (rex != 0) code.push_back(rex);
          code.insert(code.end(), map.begin(), map.end());
          code.push_back(opcode);
          ask_operands(table, code);
        }
}

void ask_vex(Table& table) {
  for (unsigned map = 1; map <= 3; ++map)
    for (unsigned w = 0; w < 2; ++w)
      for (unsigned length = 0; length < 2; ++length)
        for (unsigned pp = 0; pp < 4; ++pp)
          for (const unsigned other : {0xFU, 0xDU})  // no register, and one
            for (unsigned opcode = 0; opcode < 256; ++opcode)
              ask_operands(table, {0xC4, 0xE0 | map, w << 7 | other << 3 | length << 2 | pp, opcode});
}

std::string joined(const auto& items, std::string_view between) {
  std::string out;
  for (const auto& item : items) out += (out.empty() ? "" : std::string{between}) + item;
  return out;
}

/// Words in lines of at most 140 characters.
std::string wrapped(const std::vector<std::string>& words) {
  constexpr std::size_t widest = 140;
  std::string out;
  std::size_t column = 0;
  for (const std::string& word : words) {
    if (column + word.size() + 1 > widest) {
      out += '\n';
      column = 0;
    }
    out += (column == 0 ? "" : " ") + word;
    column += word.size() + 1;
  }
  return out + '\n';
}

std::string listing(const Table& table) {
  std::vector<std::string> whole;
  std::map<std::string, std::vector<std::string>> hosts_own;
  std::map<std::string, std::vector<std::string>> none;
  std::string partly;
  for (const auto& [name, forms] : table) {
    if (forms.left.empty()) (forms.hosts_own ? hosts_own[forms.set] : whole).push_back(name);
    if (forms.known.empty()) none[forms.set].push_back(name);
    if (!forms.left.empty() && !forms.known.empty())
      partly += "| " + name + " | " + joined(forms.known, "; ") + " | " + joined(forms.left, "; ") + " |\n";
  }
  std::ostringstream out;
  out << "# What the engine runs\n\n"
         "Written by `vpmu_exec_support`, which asks the engine's decoder for every opcode of 64-bit code, legacy and "
         "VEX. The engine runs no\n"
         "EVEX and no XOP encodings. It leaves what it cannot run to its owner. The exact source runs some of these "
         "instructions itself and\n"
         "leaves the rest to single-steps of KVM, counted by mnemonic in the statistics `pmu.exact.left.NAME` (`vpmu "
         "run --stats FILE`,\n"
         "`vpmu ctl SOCKET counters`).\n\n"
         "In these cases the engine also leaves an instruction that it otherwise runs:\n\n"
         "- The instruction faults.\n"
         "- A memory operand is not RAM.\n"
         "- A locked access is misaligned, and another vCPU may run at the same time.\n"
         "- RDPMC, CLI, POPF or a privileged instruction runs in a ring above 0.\n"
         "- POPF sets TF or IF.\n"
         "- A 16-bit SHLD or SHRD has a count of 16 or more.\n"
         "- The platform does not answer RDMSR, WRMSR, RDPMC, RDTSC or RDTSCP.\n\n"
         "## Run in every form\n\n"
      << wrapped(whole) << "\n## Run as the host's own instructions, if its CPU has them\n";
  for (const auto& [set, names] : hosts_own) out << "\n**" << set << "**: " << wrapped(names);
  out << "\n## Run in some forms\n\n| | run | left |\n|---|---|---|\n"
      << partly << "\n## Left in every form, by instruction set\n";
  for (const auto& [set, names] : none) out << "\n**" << set << "**: " << wrapped(names);
  return out.str();
}

}  // namespace

// CTest's SKIP_RETURN_CODE.
constexpr int skipped = 77;

int main(int argc, char** argv) {
  Table table;
  ask_legacy(table);
  ask_vex(table);
  const std::string text = listing(table);
  if (argc == 1) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  std::ifstream file{argv[1]};
  const std::string committed{std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}};
  if (committed == text) return 0;
  if (ZYDIS_VERSION_MINOR(ZydisGetVersion()) != 0) {  // later ones know more instructions
    std::puts("support_list: Skipped\nthe list has the instructions that Zydis 4.0 knows, and this is another version");
    return skipped;
  }
  std::fprintf(stderr, "%s differs from what the decoder says; regenerate it: %s >%s\n", argv[1], argv[0], argv[1]);
  return 1;
}
