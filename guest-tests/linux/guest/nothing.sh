# Does nothing: for measuring a boot.
# shellcheck shell=dash
