// Lists each form of instruction of 64-bit code without EVEX, and the bytes of one: FORM HEX, a line each. make_rows.py
// reads it. All opcodes of all maps are tried, with the prefixes that choose between instructions.
#include <fmt/format.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "timing/form.hpp"

namespace {

using Bytes = std::vector<unsigned>;

class Forms {
 public:
  /// Takes the instruction that begins with these bytes, if there is one.
  void attempt(Bytes begin) {
    begin.insert(begin.end(), {0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x07, 0x08, 0x09, 0x0A});
    std::vector<std::byte> code;
    for (const unsigned byte : begin) code.push_back(static_cast<std::byte>(byte));
    const auto form = vpmu::timing::read_form(code);
    if (!form) return;
    std::string hex;
    for (unsigned at = 0; at < form->length; ++at) hex += fmt::format("{:02x}", begin[at]);
    std::string& shortest = forms_[form->name];
    if (shortest.empty() || hex.size() < shortest.size()) shortest = hex;
  }
  void print() const {
    for (const auto& [form, hex] : forms_) fmt::print("{}\t{}\n", form, hex);
  }

 private:
  std::map<std::string, std::string> forms_;
};

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// ModR/M with memory at RBX and with register 6, for each value of its middle field.
std::vector<unsigned> modrm_bytes() {
  std::vector<unsigned> all;
  for (unsigned middle = 0; middle < 8; ++middle) {
    all.push_back(middle << 3 | 3);
    all.push_back(0xC0 | middle << 3 | 6);
  }
  return all;
}

void attempt_legacy(Forms& forms, const Bytes& prefixes) {
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    for (const unsigned modrm : modrm_bytes()) {
      forms.attempt(prefixes + Bytes{opcode, modrm});
      forms.attempt(prefixes + Bytes{0x0F, opcode, modrm});
      for (const unsigned map : {0x38U, 0x3AU}) forms.attempt(prefixes + Bytes{0x0F, map, opcode, modrm});
    }
    forms.attempt(prefixes + Bytes{0x0F, 0x01, opcode});
    for (unsigned x87 = 0xD8; x87 < 0xE0; ++x87)
      if (opcode >= 0xC0) forms.attempt(prefixes + Bytes{x87, opcode});
  }
}

void attempt_vex(Forms& forms) {
  for (unsigned map = 1; map < 4; ++map)
    for (unsigned last = 0; last < 256; ++last) {
      if ((last & 0x78) != 0x78 && (last & 0x78) != 0x10) continue;  // VEX.vvvv: no register, or one
      for (unsigned opcode = 0; opcode < 256; ++opcode)
        for (const unsigned modrm : modrm_bytes()) {
          forms.attempt({0xC4, 0xE0 | map, last, opcode, modrm});
          if (modrm < 0xC0) forms.attempt({0xC4, 0xE0 | map, last, opcode, (modrm & 0x38) | 4, 0x23});  // gathers
        }
    }
}

}  // namespace

int main() {
  Forms forms;
  for (const Bytes& prefix : std::vector<Bytes>{{}, {0x66}, {0xF2}, {0xF3}, {0x66, 0xF2}}) {
    attempt_legacy(forms, prefix);
    attempt_legacy(forms, prefix + Bytes{0x48});
  }
  attempt_vex(forms);
  forms.print();
}
