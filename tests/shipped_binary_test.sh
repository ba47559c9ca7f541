#!/bin/bash
# Usage: shipped_binary_test.sh SHIPPED TEST_BUILD
set -u
if grep -q PPMR_PAUSE_FILE "$1"; then
  echo "the shipped binary $1 reads PPMR_PAUSE_FILE"
  exit 1
fi
if ! grep -q PPMR_PAUSE_FILE "$2"; then
  echo "the test build $2 has no pause points"
  exit 1
fi
