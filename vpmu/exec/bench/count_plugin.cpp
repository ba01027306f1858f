#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

// A plugin for QEMU (version 1 of its interface) that counts instructions, loads and stores: what the engine counts,
// QEMU's way. Debian has no header for it; these are the declarations of QEMU's documentation ("QEMU TCG Plugins").
extern "C" {
using qemu_plugin_id_t = std::uint64_t;
using qemu_plugin_meminfo_t = std::uint32_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info_t;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_R = 1, QEMU_PLUGIN_MEM_W, QEMU_PLUGIN_MEM_RW };
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
using tb_trans_cb = void (*)(qemu_plugin_id_t, qemu_plugin_tb*);
using udata_cb = void (*)(unsigned, void*);
using mem_cb = void (*)(unsigned, qemu_plugin_meminfo_t, std::uint64_t, void*);
using exit_cb = void (*)(qemu_plugin_id_t, void*);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_trans_cb);
void qemu_plugin_register_vcpu_tb_exec_inline(qemu_plugin_tb*, qemu_plugin_op, void*, std::uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(qemu_plugin_insn*, udata_cb, qemu_plugin_cb_flags, void*);
void qemu_plugin_register_vcpu_mem_cb(qemu_plugin_insn*, mem_cb, qemu_plugin_cb_flags, qemu_plugin_mem_rw, void*);
std::size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb*);
qemu_plugin_insn* qemu_plugin_tb_get_insn(const qemu_plugin_tb*, std::size_t);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, exit_cb, void*);
void qemu_plugin_outs(const char*);

[[gnu::visibility("default")]] extern const int qemu_plugin_version;
[[gnu::visibility("default")]] int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t* info, int count,
                                                       char** options);
}

const int qemu_plugin_version = 1;

namespace {

std::uint64_t instructions;
std::uint64_t loads, stores;

void on_instruction(unsigned /*cpu*/, void* /*data*/) { ++instructions; }
void on_access(unsigned /*cpu*/, qemu_plugin_meminfo_t info, std::uint64_t /*address*/, void* /*data*/) {
  ++(qemu_plugin_mem_is_store(info) ? stores : loads);
}

void count_inline(qemu_plugin_id_t /*id*/, qemu_plugin_tb* tb) {
  qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &instructions, qemu_plugin_tb_n_insns(tb));
}

void count_by_callbacks(qemu_plugin_id_t /*id*/, qemu_plugin_tb* tb) {
  for (std::size_t i = 0; i < qemu_plugin_tb_n_insns(tb); ++i) {
    qemu_plugin_insn* const insn = qemu_plugin_tb_get_insn(tb, i);
    qemu_plugin_register_vcpu_insn_exec_cb(insn, on_instruction, QEMU_PLUGIN_CB_NO_REGS, nullptr);
    qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, nullptr);
  }
}

void at_exit(qemu_plugin_id_t /*id*/, void* /*data*/) {
  const std::string line = "instructions " + std::to_string(instructions) + " loads " + std::to_string(loads) +
                           " stores " + std::to_string(stores);
  qemu_plugin_outs((line + '\n').c_str());
}

}  // namespace

int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t* /*info*/, int count, char** options) {
  bool callbacks = false;
  for (int i = 0; i < count; ++i) callbacks |= std::strcmp(options[i], "mode=callbacks") == 0;
  qemu_plugin_register_vcpu_tb_trans_cb(id, callbacks ? count_by_callbacks : count_inline);
  qemu_plugin_register_atexit_cb(id, at_exit, nullptr);
  return 0;
}
