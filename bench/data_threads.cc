// Prints how many threads of each kind move the memory of a tree on nodes with so many processors,
// as JSON: the model of bench/measure/scale_model.py asks the product itself.
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
