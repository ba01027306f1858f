/* Regions of a program that `vpmu stat` counts by name. Each call is a few instructions that do nothing anywhere else:
   outside of a guest, and with any other counter. For x86-64, GCC and Clang, C and C++; nothing to link.

       vpmu_region_begin("parse");
       parse(text);
       vpmu_region_end();

   Regions may be in each other, and each thread has its own. A region's counts are those of its thread between begin
   and end, system calls included, and the regions in it. The label is a text of at most 127 bytes that ends with a NUL.

   The instructions are those of Valgrind's client requests, with numbers of our own. */
#ifndef VPMU_REGIONS_H
#define VPMU_REGIONS_H

struct vpmu_request {
  unsigned long number; /* Begins with the letters V and P. */
  const char* label;
  unsigned long unused[4];
};

static inline void vpmu_ask(const struct vpmu_request* request) {
  unsigned long answer = 0;
  __asm__ volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\txchgq %%rbx, %%rbx"
                   : "+d"(answer)
                   : "a"(request)
                   : "cc", "memory");
}

static inline void vpmu_region_begin(const char* label) {
  const struct vpmu_request request = {0x56500000UL, label, {0, 0, 0, 0}};
  const volatile char* const text = label;
  (void)*text; /* so that it is in memory */
  vpmu_ask(&request);
}

static inline void vpmu_region_end(void) {
  const struct vpmu_request request = {0x56500001UL, "", {0, 0, 0, 0}};
  vpmu_ask(&request);
}

#endif
