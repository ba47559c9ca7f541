// Which lines of /proc/PID/maps are memory that a lazy dump of CRIU leaves out.
//
// Two programs apply this rule: ppmr, whose page index lists that memory, and the library in CRIU
// that hides it from CRIU (restart_loader/criu/hidden_memory.h). Memory that the library hides and
// the index does not list would be lost, so both programs use this one rule. The library has no C++
// runtime library, so this header uses only headers of the language itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ppmr {

// A line "7f00-7f01 rw-p 00000000 00:00 0    [heap]" without its newline.
struct MappingLine {
  const char* text = nullptr;
  size_t length = 0;

  // Takes the next field, and the blanks around it.
  constexpr MappingLine take_field() {
    skip_blanks();
    MappingLine field{text, 0};
    while (field.length < length && text[field.length] != ' ') ++field.length;
    text += field.length;
    length -= field.length;
    skip_blanks();
    return field;
  }
  constexpr bool starts_with(const char* prefix) const {
    size_t at = 0;
    while (prefix[at] != '\0' && at < length && text[at] == prefix[at]) ++at;
    return prefix[at] == '\0';
  }
  constexpr bool is(const char* whole) const { return starts_with(whole) && whole[length] == '\0'; }

 private:
  constexpr void skip_blanks() {
    while (length > 0 && *text == ' ') {
      ++text;
      --length;
    }
  }
};

// Reads hexadecimal digits up to the first other character. Returns how many there were.
constexpr size_t read_hexadecimal(const char* text, size_t length, uint64_t& number) {
  number = 0;
  size_t digits = 0;
  for (; digits < length; ++digits) {
    const char digit = text[digits];
    const bool is_decimal = digit >= '0' && digit <= '9';
    if (!is_decimal && (digit < 'a' || digit > 'f')) break;
    number = number << 4 | static_cast<uint64_t>(is_decimal ? digit - '0' : digit - 'a' + 10);
  }
  return digits;
}

// Returns whether the line is a private anonymous mapping, and its addresses. Locked memory counts
// as well here, although CRIU dumps it: maps does not show what is locked.
constexpr bool is_lazy_mapping(MappingLine line, uint64_t& start, uint64_t& end) {
  const MappingLine range = line.take_field();
  const MappingLine rights = line.take_field();
  line.take_field();  // offset
  line.take_field();  // device
  const MappingLine inode = line.take_field();
  const size_t dash = read_hexadecimal(range.text, range.length, start);
  if (dash == 0 || dash >= range.length || range.text[dash] != '-') return false;
  const size_t rest = range.length - dash - 1;
  if (read_hexadecimal(range.text + dash + 1, rest, end) != rest || end <= start) return false;
  if (rights.length != 4 || rights.text[3] != 'p' || !inode.is("0")) return false;
  // The kernel's own mappings have other names: [vdso], [vvar], [vsyscall], [uprobes].
  return line.length == 0 || line.is("[heap]") || line.starts_with("[stack") ||
         line.starts_with("[anon:");
}

}  // namespace ppmr
