#include <span>

int evened(std::span<const int> values, int min) {
  int result = min;
  unsigned seen = 0;
  for (const int value : values) {
    if (value < min) continue;
    if (seen == 0 || value > result) {
      result = value;
      ++seen;
    }
  }
  if (seen == 0) return -1;
  if (seen > 1 && result < min + 2) return min;
  return result % 2 == 0 ? result : result + 1;
}

int rounded(std::span<const int> values, int min) {
  int result = min;
  unsigned found = 0;
  for (const int value : values) {
    if (value < min) continue;
    if (found == 0 || value > result) {
      result = value;
      ++found;
    }
  }
  if (found == 0) return -1;
  if (found > 1 && result < min + 2) return min;
  return result % 2 == 0 ? result : result + 1;
}

int first_of_a_list(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m);
int second_of_a_list(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m);
int third_of_a_list(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m);
int fourth_of_a_list(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m);
int fifth_of_a_list(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m);
int sixth_of_a_list(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m);
