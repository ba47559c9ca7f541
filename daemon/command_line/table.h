// A table for people. The rule: a table that is wider than the terminal loses columns of its widest
// cells of text first. A cut cell ends with ">". Numbers are never cut, and the last column breaks
// like any long line (print_to()).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ppmr {

struct TableColumn {
  std::string title;
  bool is_number = false;  // aligned to the right, and never cut
  bool is_whole = false;   // never cut
};

// Threads: one.
class Table {
 public:
  // `indent`: spaces before each row.
  explicit Table(std::vector<TableColumn> columns, size_t indent = 0);

  // Adds a row with a cell for each column. Control characters in it become visible.
  void add(std::vector<std::string> cells);
  // Returns the table for this number of columns; 0: whole.
  std::string text(size_t columns) const;

 private:
  std::vector<size_t> widths(size_t columns) const;

  std::vector<TableColumn> columns_;
  size_t indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ppmr
