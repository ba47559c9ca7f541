// A table for people. If it is wider than the terminal, the widest columns of text become narrower
// first. A cut cell ends with ">". Numbers are never cut. The cells of the last column are not cut
// either: print_to() breaks the line.
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
  // Returns the table for a terminal with this number of columns; 0: the table stays whole.
  std::string text(size_t columns) const;

 private:
  std::vector<size_t> widths(size_t columns) const;

  std::vector<TableColumn> columns_;
  size_t indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ppmr
