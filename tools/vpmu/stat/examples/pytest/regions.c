/* For programs that cannot include C: cc -shared -fPIC -O2 -I INCLUDE regions.c -o regions.so */
#include <vpmu_regions.h>

void region_begin(const char* label);
void region_end(void);

void region_begin(const char* label) { vpmu_region_begin(label); }
void region_end(void) { vpmu_region_end(); }
