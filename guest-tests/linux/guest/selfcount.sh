# What a program counts of itself by perf_event_open, signals and RDPMC: the lines of programs/selfcount.c, after the word "self".
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

sample_without_limit
selfcount >/tmp/self || say error "selfcount failed"
say_lines self </tmp/self
