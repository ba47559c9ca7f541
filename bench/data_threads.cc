// Prints as JSON how many threads of each kind move the memory of a tree on a node, for each number
// of processors on the command line. bench/measure/scale.py passes the numbers to its model.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "processes/memory/data_threads.h"

int main(int argc, char** argv) {
  CLI::App app("the threads that move memory, by the processors of a node");
  std::vector<size_t> processors;
  app.add_option("PROCESSORS", processors)->required();
  CLI11_PARSE(app, argc, argv);
  nlohmann::json all = nlohmann::json::object();
  for (const size_t count : processors) {
    all[std::to_string(count)] = {{"readers", ppmr::memory_readers(count)},
                                  {"streams", ppmr::usual_streams(count)},
                                  {"fillers", ppmr::page_fillers(count)}};
  }
  std::puts(all.dump().c_str());
  return 0;
}
