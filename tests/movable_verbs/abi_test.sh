#!/bin/bash
# Usage: abi_test.sh LIBRARY
# The library needs nothing but libc and libibverbs: programs may have another C++ library, or none.
# Compares the names and versions that libppmr-verbs.so exports with those of the libibverbs of this
# machine. A function of libibverbs that gets an object, and that our library does not have, would
# meet one of our objects in place of a real one.
set -u
export LC_ALL=C
real=$(ldconfig -p | awk '/libibverbs\.so\.1 .*x86-64|libibverbs\.so\.1 / {print $NF; exit}')
if [ ! -f "$real" ]; then
  echo "no libibverbs.so.1 on this machine"
  exit 1
fi

# Functions that get no object, or only real ones (private to rdma-core, and of providers). Imported
# objects cannot exist: the functions that make them refuse.
without_objects='
ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
ibv_copy_qp_attr_from_kern ibv_dofork_range ibv_dontfork_range ibv_event_type_str ibv_fork_init
ibv_get_sysfs_path ibv_is_fork_initialized ibv_node_type_str ibv_port_state_str ibv_rate_to_mbps
ibv_rate_to_mult ibv_read_sysfs_file ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd
ibv_wc_status_str mbps_to_ibv_rate mult_to_ibv_rate'

# NAME@VERSION of each default version; those of IBVERBS_1.0 beside them have an older interface.
exported() {
  nm -D --defined-only --with-symbol-versions "$1" | awk '$3 ~ /@@IBVERBS_[0-9]/ {print $3}' |
    sed 's/@@/@/' | sort
}

needed=$(objdump -p "$1" | awk '$1 == "NEEDED" {print $2}')
others=$(echo "$needed" | grep -v -x -E 'libc\.so\.6|libm\.so\.6|libibverbs\.so\.1|ld-linux.*')
if ! echo "$needed" | grep -q '^libc\.so\.6$' || [ -n "$others" ]; then
  echo "needs other libraries than libc and libibverbs:" $others
  exit 1
fi

expected=$(exported "$real" | grep -v -E "^($(echo $without_objects | tr ' ' '|'))@")
found=$(exported "$1")
if [ -z "$expected" ]; then
  echo "$real exports nothing"
  exit 1
fi
if [ "$expected" != "$found" ]; then
  echo "differs from $real (<: missing in ours; >: not in theirs)"
  diff <(echo "$expected") <(echo "$found")
  exit 1
fi
echo "$(echo "$found" | wc -l) functions, as in $real"
