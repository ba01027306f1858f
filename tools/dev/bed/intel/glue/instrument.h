// The hooks that Bochs calls while it executes: its macros, and the functions that the patch calls. Bochs includes this
// file as the instrumentation library of its own build; it must not include anything of vpmu's.
#pragma once

class bxInstruction_c;
struct cpuid_function_t;

namespace bed {

/// A counter counts, branches are recorded, or a PMI is pending: each instruction has to be reported.
extern bool watching;

void initialize();
void reset(unsigned type);
void report();

void before_instruction();
void after_instruction(bxInstruction_c* instruction);
/// The kind of the current instruction; for unconditional near branches `what` is Bochs's number.
void conditional_branch(bool taken);
void near_branch(unsigned what);
void far_branch();
void access(unsigned long long linear, unsigned long long physical, unsigned bytes, unsigned how);
void flush_line(unsigned long long linear, unsigned long long physical);
void flush_caches();
void flush_translations();

enum class Answer { done, fault, not_the_pmus };
Answer rdmsr(unsigned index, unsigned long long& value);
Answer wrmsr(unsigned index, unsigned long long value);
/// False: raise #GP(0).
bool rdpmc(unsigned ecx, unsigned cpl, bool cr4_pce, unsigned long long& value);
/// Adds the PMU to Bochs's CPUID.
void cpuid(unsigned leaf, cpuid_function_t& answer);
/// #DB is being delivered.
void debug_exception();

}  // namespace bed

#define BED_WATCHED(call)                              \
  {                                                    \
    if (__builtin_expect(bed::watching, 0)) bed::call; \
  }

#define BX_INSTR_INIT_ENV()
#define BX_INSTR_EXIT_ENV() bed::report()

#define BX_INSTR_INITIALIZE(cpu_id) bed::initialize()
#define BX_INSTR_EXIT(cpu_id)
#define BX_INSTR_RESET(cpu_id, type) bed::reset(type)
#define BX_INSTR_HLT(cpu_id)
#define BX_INSTR_MWAIT(cpu_id, addr, len, flags)

#define BX_INSTR_DEBUG_PROMPT()
#define BX_INSTR_DEBUG_CMD(cmd)

#define BX_INSTR_CNEAR_BRANCH_TAKEN(cpu_id, from, to) BED_WATCHED(conditional_branch(true))
#define BX_INSTR_CNEAR_BRANCH_NOT_TAKEN(cpu_id, from) BED_WATCHED(conditional_branch(false))
#define BX_INSTR_UCNEAR_BRANCH(cpu_id, what, from, to) BED_WATCHED(near_branch(what))
#define BX_INSTR_FAR_BRANCH(cpu_id, what, prev_cs, from, new_cs, to) BED_WATCHED(far_branch())

#define BX_INSTR_OPCODE(cpu_id, i, opcode, len, is32, is64)

#define BX_INSTR_EXCEPTION(cpu_id, vector, error_code) \
  {                                                    \
    if ((vector) == 1) bed::debug_exception();         \
  }
#define BX_INSTR_INTERRUPT(cpu_id, vector)
#define BX_INSTR_HWINTERRUPT(cpu_id, vector, cs, eip)

#define BX_INSTR_CLFLUSH(cpu_id, laddr, paddr) BED_WATCHED(flush_line(laddr, paddr))
#define BX_INSTR_CACHE_CNTRL(cpu_id, what) BED_WATCHED(flush_caches())
#define BX_INSTR_TLB_CNTRL(cpu_id, what, new_cr3) BED_WATCHED(flush_translations())
#define BX_INSTR_PREFETCH_HINT(cpu_id, what, seg, offset)

#define BX_INSTR_BEFORE_EXECUTION(cpu_id, i) BED_WATCHED(before_instruction())
#define BX_INSTR_AFTER_EXECUTION(cpu_id, i) BED_WATCHED(after_instruction(i))
#define BX_INSTR_REPEAT_ITERATION(cpu_id, i)

#define BX_INSTR_LIN_ACCESS(cpu_id, lin, phy, len, memtype, rw) BED_WATCHED(access(lin, phy, len, rw))
#define BX_INSTR_PHY_ACCESS(cpu_id, phy, len, memtype, rw)

#define BX_INSTR_INP(addr, len)
#define BX_INSTR_INP2(addr, len, val)
#define BX_INSTR_OUTP(addr, len, val)

#define BX_INSTR_WRMSR(cpu_id, addr, value)
#define BX_INSTR_VMEXIT(cpu_id, reason, qualification)
