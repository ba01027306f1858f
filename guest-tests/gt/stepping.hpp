#pragma once
#include <cstdint>

/// Code that single-steps itself or raises one event, in stepping.S. A label with a number is the guest's RIP when one
/// of its handlers is entered.
extern "C" {
/// The flags that gt_popf_steps's PUSHF pushed.
extern std::uint64_t gt_popf_image;
extern const char gt_popf_1[], gt_popf_2[], gt_popf_3[], gt_popf_4[], gt_popf_5[], gt_popf_6[], gt_popf_7[];
extern const char gt_iret_1[], gt_iret_2[];
extern const char gt_int3_1[], gt_int_n_1[], gt_int1_1[], gt_ud2_1[], gt_ud_1[], gt_de_1[], gt_gp_1[];
extern const char gt_bp_behind_mov_ss_1[], gt_bp_behind_sti_1[];
extern const char gt_int_n_stepped_1[], gt_int_n_stepped_2[], gt_int_n_stepped_3[], gt_int_n_stepped_4[],
    gt_int_n_stepped_5[], gt_int_n_stepped_6[], gt_int_n_stepped_7[], gt_int_n_stepped_8[];
extern const char gt_others_stepped_1[], gt_others_stepped_2[], gt_others_stepped_3[], gt_others_stepped_4[],
    gt_others_stepped_5[], gt_others_stepped_6[], gt_others_stepped_7[], gt_others_stepped_8[], gt_others_stepped_10[],
    gt_others_stepped_11[], gt_others_stepped_12[];
extern const char gt_mov_ss_stepped_1[], gt_mov_ss_stepped_2[], gt_mov_ss_stepped_3[];
extern const char gt_branches_stepped_1[], gt_branches_stepped_2[];
extern const char gt_copy_stepped_1[], gt_copy_stepped_2[], gt_copy_stepped_3[];
void gt_popf_steps();
void gt_iret_steps();
void gt_int3_once();
void gt_int_n_once();
void gt_int1_once();
void gt_ud2_once();
void gt_ud_once();
void gt_de_once();
void gt_gp_once();
void gt_bp_behind_mov_ss();
void gt_bp_behind_sti();
void gt_int_n_stepped();
void gt_others_stepped();
void gt_mov_ss_stepped();
void gt_branches_stepped();
void gt_copy_stepped(void* to, const void* from);
}
