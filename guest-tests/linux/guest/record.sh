# Precise sampling of split and loop8 in every mode; record_run.sh tells what it prints.
# shellcheck shell=dash disable=SC1091,SC2034 # record_run.sh reads `first`
. /guest/speak.sh
. /guest/record_run.sh

for precise in p pp ppp; do
  # In the bed handlers take most of the samples: with fewer runs than these there are never enough left.
  first=4
  run "freq-$precise" split 1000 -- -e "cycles:$precise" -F 1000
  first=1
  run "period-$precise" split 800 -- -e "cycles:$precise" -c 2000003
  # With a call chain the kernel wants an interrupt for each record. A handler takes a millisecond or two in the bed: the period has to be
  # longer, or most samples are of handlers.
  mark "before-single-$precise"
  run "single-$precise" split 3200 -- -e "cycles:$precise" -c 8000003 -g
  mark "after-single-$precise"
done
first=6
run loop8-freq loop8 -- -e cycles:pp -F 1000
first=1
run loop8-period loop8 -- -e cycles:pp -c 2000003
