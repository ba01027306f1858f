/* A plugin of QEMU's user emulation that counts what a single-threaded program executes, as a PMU does:
 *
 *     qemu-x86_64 -plugin libcounts.so -d plugin PROGRAM
 *
 * prints "instructions N", "branches N", "loads N", "stores N" and "turns N". A repeated string instruction is one
 * instruction; QEMU executes it anew for each element, and `turns` counts those that are left out for that. An
 * instruction that loads twice is one load. A branch is what changes control near or far, taken or not; SYSCALL is one.
 *
 * The declarations are those of QEMU's plugin interface, version 1 (docs/devel/tcg-plugins), as far as they are used:
 * Debian has the emulator but not the header.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef uint64_t plugin_id;
typedef uint32_t access_info;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum registers_used { NO_REGISTERS };
enum accesses { LOADS_AND_STORES = 3 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn*, void (*)(unsigned, void*), enum registers_used,
                                            void*);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn*, void (*)(unsigned, access_info, uint64_t, void*),
                                      enum registers_used, enum accesses, void*);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void*), void*);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn*);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn*);
bool qemu_plugin_mem_is_store(access_info);
void qemu_plugin_outs(const char*);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t instructions, branches, loads, stores, turns;
static uint64_t last; /* Address of the instruction that runs. */
static bool loaded, stored, repeated;

/* What is known of an instruction travels in the pointer that QEMU hands back: its address, and two bits. User
 * addresses have 47 bits. */
enum { is_branch = 1, is_string = 2, shift = 2 };

static bool is_prefix(unsigned byte) {
  return byte == 0x66 || byte == 0x67 || byte == 0x2E || byte == 0x36 || byte == 0x3E || byte == 0x26 || byte == 0x64 ||
         byte == 0x65 || byte == 0xF0 || byte == 0xF2 || byte == 0xF3 || (byte & 0xF0) == 0x40;
}

/* SDM 2D appendix A, tables. */
static uintptr_t kind_of(const unsigned char* code, size_t size) {
  bool rep = false;
  size_t at = 0;
  for (; at + 1 < size && is_prefix(code[at]); ++at) rep = rep || code[at] == 0xF2 || code[at] == 0xF3;
  const unsigned first = code[at];
  const unsigned second = at + 1 < size ? code[at + 1] : 0;
  if (rep && ((first >= 0xA4 && first <= 0xA7) || (first >= 0xAA && first <= 0xAF))) return is_string;
  if ((first >= 0x70 && first <= 0x7F) || (first >= 0xE0 && first <= 0xE3) || first == 0xE8 || first == 0xE9 ||
      first == 0xEB)
    return is_branch;
  if (first == 0xC2 || first == 0xC3 || first == 0xCA || first == 0xCB || first == 0xCC || first == 0xCD ||
      first == 0xCF)
    return is_branch;
  if (first == 0xFF) return (second >> 3 & 7) >= 2 && (second >> 3 & 7) <= 5 ? is_branch : 0;
  if (first == 0x0F) return (second >= 0x80 && second <= 0x8F) || second == 0x05 || second == 0x34 ? is_branch : 0;
  return 0;
}

static void on_instruction(unsigned cpu, void* data) {
  (void)cpu;
  const uintptr_t what = (uintptr_t)data;
  repeated = (what & is_string) != 0 && last == what;
  last = what;
  if (repeated) {
    ++turns;
    return;
  }
  loaded = stored = false;
  ++instructions;
  if ((what & is_branch) != 0) ++branches;
}

static void on_access(unsigned cpu, access_info info, uint64_t address, void* data) {
  (void)cpu;
  (void)address;
  (void)data;
  if (qemu_plugin_mem_is_store(info)) {
    if (!stored) ++stores;
    stored = true;
  } else {
    if (!loaded) ++loads;
    loaded = true;
  }
}

static void on_block(plugin_id id, struct qemu_plugin_tb* block) {
  (void)id;
  for (size_t n = 0; n < qemu_plugin_tb_n_insns(block); ++n) {
    struct qemu_plugin_insn* const i = qemu_plugin_tb_get_insn(block, n);
    const uintptr_t what =
        (uintptr_t)qemu_plugin_insn_vaddr(i) << shift | kind_of(qemu_plugin_insn_data(i), qemu_plugin_insn_size(i));
    qemu_plugin_register_vcpu_insn_exec_cb(i, on_instruction, NO_REGISTERS, (void*)what);
    qemu_plugin_register_vcpu_mem_cb(i, on_access, NO_REGISTERS, LOADS_AND_STORES, NULL);
  }
}

static void at_exit(plugin_id id, void* data) {
  (void)id;
  (void)data;
  char text[200];
  snprintf(text, sizeof text,
           "instructions %" PRIu64 "\nbranches %" PRIu64 "\nloads %" PRIu64 "\nstores %" PRIu64 "\nturns %" PRIu64 "\n",
           instructions, branches, loads, stores, turns);
  qemu_plugin_outs(text);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void* info, int argc, char** argv) {
  (void)info;
  (void)argc;
  (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
  return 0;
}
